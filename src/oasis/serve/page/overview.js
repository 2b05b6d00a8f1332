"use strict";
// The rates, the tiers, the engine and the latencies. `now` and `was` are answers of /state, `dt` the seconds between them;
// `points`: how far the charts move on.

function ratio(part, whole) {
  return whole > 0 ? part / whole : null;
}

function perSecond(name) {
  return (now, was, dt) => (now.totals[name] - was.totals[name]) / dt;
}

function difference(now, was, name) {
  return now.totals[name] - was.totals[name];
}

// Prompt tokens read so far: a prompt enters the totals when it is read whole.
function promptsRead(state) {
  const underWay = state.sequences.filter((s) => s.state === "prefill");
  return underWay.reduce((sum, s) => sum + s.prefilled, state.totals.prompt_tokens);
}

const SMOOTH = 30;  // answers over which `smooth` tiles look back: shares of few events jump about

const TILES = [
  {
    name: "Output", unit: "tokens/s", format: formatCount, value: perSecond("output_tokens"),
    note: (now) => `${formatCount(now.totals.output_tokens)} tokens in ${formatCount(now.totals.requests_finished)} requests`,
  },
  {
    name: "Prompts", unit: "tokens/s", format: formatCount,
    value: (now, was, dt) => Math.max(0, now.promptsRead - was.promptsRead) / dt,
    note: (now) => `${formatShare(ratio(now.totals.cached_tokens, now.totals.prompt_tokens))} came from the prefix cache`,
  },
  {
    name: "Link", unit: "/s", format: formatBytes, value: perSecond("fetched_bytes"),
    note: (now) => `${formatBytes(now.totals.fetched_bytes)} into the fast tier`,
  },
  {
    name: "Hit rate", unit: "", format: formatShare, top: 1, smooth: true,
    value: (now, was) => ratio(difference(now, was, "hits"), difference(now, was, "hits") + difference(now, was, "misses")),
    note: ({totals}) => totals.hits + totals.misses === 0 ? "nothing is sparse yet"
      : `agreement ${totals.agreement ? totals.agreement.toFixed(2) : UNKNOWN}, cover ${totals.cover.toFixed(2)}`,
  },
  {
    name: "Drafts right", unit: "", format: formatShare, top: 1, smooth: true,
    value: (now, was) => ratio(difference(now, was, "drafts_right"), difference(now, was, "drafts_compared")),
    note: (now) => `${now.engine.drafter}, ${formatCount(now.totals.drafts_accepted)} accepted`,
  },
];

class Tile {
  constructor(spec) {
    this.spec = spec;
    this.shown = element("strong", {}, UNKNOWN);
    this.note = element("span", {class: "note"}, " ");
    this.chart = new Sparkline({
      name: `${spec.name} over the last three minutes`, top: spec.top,
      describe: ([value]) => value === null ? "nothing" : spec.format(value) + spec.unit.replace(/^(?=[a-z])/, " "),
    });
    this.chart.onpoint = (text) => this.pointAt(text);
    this.root = element("li", {class: "card tile"}, element("h2", {}, spec.name),
                        element("p", {}, this.shown, element("span", {class: "unit"}, spec.unit)), this.chart.root, this.note);
  }

  show(now, was, dt, points) {
    const value = was ? this.spec.value(now, was, dt) : null;
    setText(this.shown, value === null ? UNKNOWN : this.spec.format(value));
    this.text = this.spec.note(now);
    if (!this.pointed) setText(this.note, this.text);
    this.chart.push(points, value);
  }

  gap(points) {
    setText(this.shown, UNKNOWN);
    this.chart.push(points, null);
  }

  pointAt(text) {
    this.pointed = text !== null;
    setText(this.note, text ?? this.text ?? "");
  }
}

class TierRow {
  constructor(name, parts) {
    this.name = name;
    this.bar = new Bar(parts);
    this.figures = element("span", {});
    this.note = element("p", {class: "note"});
    this.chart = new Sparkline({name: `${name} over the last three minutes`, top: 1, describe: ([v]) => formatShare(v)});
    this.root = element("div", {class: "tier"}, element("div", {class: "row"}, element("h3", {}, name), this.figures),
                        element("div", {class: "row"}, this.bar.root, this.chart.root), this.note);
  }

  show({used, limit, shares, note}, points) {
    const figures = `${formatBytes(used)} of ${formatBytes(limit)}`;
    setText(this.figures, figures);
    setText(this.note, note);
    this.bar.set(shares, `${this.name}: ${figures}; ${note}`);
    this.chart.push(points, ratio(used, limit));
  }
}

function fastTier({fast}) {
  return {
    used: fast.used, limit: fast.limit,
    shares: {fast: ratio(fast.used, fast.limit), peak: ratio(fast.peak - fast.used, fast.limit)},
    note: `peak ${formatBytes(fast.peak)}, ${formatCount(fast.pages_free)} of ${formatCount(fast.pages)} pages free`,
  };
}

function capacityTier({capacity}) {
  const free = Math.max(0, capacity.blocks - capacity.blocks_referenced - capacity.blocks_cached);
  const file = capacity.file_bytes ? `, file ${formatBytes(capacity.file_bytes)}` : "";
  return {
    used: capacity.used, limit: capacity.limit,
    shares: {
      capacity: ratio(capacity.blocks_referenced, capacity.blocks),
      cached: ratio(capacity.blocks_cached, capacity.blocks),
      reserved: ratio(Math.min(free, capacity.blocks_reserved), capacity.blocks),
    },
    note: `${formatCount(capacity.blocks_referenced)} blocks in use, ${formatCount(capacity.blocks_cached)} cached, ` +
      `${formatCount(capacity.blocks_reserved)} promised${file}`,
  };
}

// A bar under its name and figures.
class LoadRow {
  constructor(name, parts) {
    this.name = name;
    this.bar = new Bar(parts);
    this.figures = element("span");
    this.root = element("div", {class: "load"}, element("div", {class: "row"}, element("h3", {}, name), this.figures),
                        this.bar.root);
  }

  show(shares, text) {
    setText(this.figures, text);
    this.bar.set(shares, `${this.name}: ${text}`);
  }
}

class Overview {
  constructor() {
    this.past = [];  // the last answers, oldest first
    this.tiles = TILES.map((spec) => new Tile(spec));
    byId("tiles").append(...this.tiles.map((tile) => tile.root));
    this.fast = new TierRow("Fast", ["fast", "peak"]);
    this.capacity = new TierRow("Capacity", ["capacity", "cached", "reserved"]);
    byId("tiers").append(this.fast.root, this.capacity.root);
    this.running = new LoadRow("Running", ["running", "prefill"]);
    this.queue = new LoadRow("Queue", ["preempted", "waiting"]);
    this.time = new LoadRow("Time", ["running", "stalled"]);
    this.loadNote = element("p", {class: "note"});
    byId("load").append(this.running.root, this.queue.root, this.time.root, this.loadNote);
    this.latency = {ttft: "First token", inter_token: "Between tokens", e2e: "Whole request"};
    for (const [key, name] of Object.entries(this.latency)) this.latency[key] = this.latencyRow(name);
  }

  latencyRow(name) {
    const cells = ["p50", "p90", "p99"].map(() => element("td", {}, UNKNOWN));
    const chart = new Sparkline({
      series: 2, name: `${name}, p50 and p99 over the last three minutes`,
      describe: ([p50, p99]) => `p50 ${formatSeconds(p50)}, p99 ${formatSeconds(p99)}`,
    });
    const note = byId("latency-note");
    chart.onpoint = (text) => setText(note, text ?? this.latencyText ?? "");
    byId("latency").tBodies[0].append(
      element("tr", {}, element("th", {scope: "row"}, name), ...cells),
      element("tr", {class: "chart"}, element("td", {colspan: 4}, chart.root)));
    return {cells, chart};
  }

  show(now, was, dt, points) {
    now = {...now, promptsRead: promptsRead(now)};
    if (!was) this.past = [];
    was = this.past.at(-1);
    for (const tile of this.tiles) tile.show(now, tile.spec.smooth ? this.past[0] : was, dt, points);
    this.past.push(now);
    if (this.past.length > SMOOTH) this.past.shift();
    this.fast.show(fastTier(now.tiers), points);
    this.capacity.show(capacityTier(now.tiers), points);
    this.showLoad(now, was, dt);
    this.latencyText = `last ${formatCount(now.latency.e2e.samples)} requests`;
    setText(byId("latency-note"), this.latencyText);
    for (const [key, {cells, chart}] of Object.entries(this.latency)) {
      const {p50, p90, p99, samples} = now.latency[key];
      [p50, p90, p99].forEach((value, i) => setText(cells[i], samples ? formatSeconds(value) : UNKNOWN));
      chart.push(points, samples ? p50 : null, samples ? p99 : null);
    }
  }

  showLoad(now, was, dt) {
    const {running, prefilling, waiting, preempted} = now.requests;
    const {max_sequences: most, max_queue: longest} = now.limits;
    this.running.show({running: ratio(running, most), prefill: ratio(prefilling, most)},
                      `${formatCount(running + prefilling)} of ${formatCount(most)}` +
                      (prefilling ? `, ${prefilling} in prefill` : ""));
    this.queue.show({preempted: ratio(preempted, longest), waiting: ratio(waiting, longest)},
                    `${formatCount(waiting)} of ${formatCount(longest)}` + (preempted ? `, ${preempted} preempted` : ""));
    const share = (name) => was ? Math.min(1, difference(now, was, name) / dt) : 0;
    const stalled = share("wait_seconds"), decode = Math.max(0, share("decode_seconds") - stalled);
    const percent = (x) => `${Math.round(100 * x)}%`;
    this.time.show({running: decode, stalled}, `decode ${percent(decode)}, wait for the link ${percent(stalled)}`);
    const {requests_failed: failed, requests_cancelled: cancelled, preemptions} = now.totals;
    setText(this.loadNote, `So far ${formatCount(failed)} failed, ${formatCount(cancelled)} cancelled, ` +
      `${formatCount(preemptions)} preempted`);
  }

  // The server does not answer: the lines break off.
  gap(points) {
    for (const tile of this.tiles) tile.gap(points);
    for (const row of [this.fast, this.capacity]) row.chart.push(points, null);
    for (const {chart} of Object.values(this.latency)) chart.push(points, null, null);
  }
}
