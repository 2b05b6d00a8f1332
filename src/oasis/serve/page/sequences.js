"use strict";
// Every sequence: a map of all blocks on a canvas, and a table of which only the rows in view exist.

const ROW_PX = 26;  // as --row in the style sheet
const STATE_ORDER = ["running", "prefill", "preempted", "waiting"];

function residency(s) {
  return s.total_blocks > 0 ? s.resident_blocks / s.total_blocks : 0;
}

// `key`: what it is sorted by. `show` fills a cell; with `bar` (the parts of one) the cell has a `bar` and a `text`.
const COLUMNS = [
  {title: "Id", key: (s) => s.id, show: (cell, s) => setText(cell, String(s.id))},
  {
    title: "State", left: true, key: (s) => STATE_ORDER.indexOf(s.state),
    show: (cell, s) => {
      setText(cell, s.state);
      cell.className = `left state ${s.state}`;
    },
  },
  {
    title: "Prompt", key: (s) => s.prompt_tokens,
    bar: ["prefill"],
    show: (cell, s) => {
      const reading = s.state === "prefill";
      const text = reading ? `${formatCount(s.prefilled)} of ${formatCount(s.prompt_tokens)}` : formatCount(s.prompt_tokens);
      cell.bar.root.classList.toggle("unused", !reading);
      cell.bar.set({prefill: s.prompt_tokens ? s.prefilled / s.prompt_tokens : 0}, `${text} tokens read`);
      setText(cell.text, text);
    },
  },
  {title: "Output", key: (s) => s.output_tokens, show: (cell, s) => setText(cell, formatCount(s.output_tokens))},
  {
    title: "Resident blocks", key: residency, bar: ["fast", "capacity"], wide: true,
    show: (cell, s) => {
      const text = s.total_blocks ? `${formatCount(s.resident_blocks)} of ${formatCount(s.total_blocks)}` : UNKNOWN;
      cell.bar.set({fast: residency(s), capacity: s.total_blocks ? 1 - residency(s) : 0}, `${text} blocks resident`);
      setText(cell.text, text);
    },
  },
  {
    title: "Attention", key: (s) => Number(s.sparse),
    show: (cell, s) => setText(cell, !s.total_blocks ? UNKNOWN : s.sparse ? "sparse" : "dense"),
  },
  {title: "Age", key: (s) => s.age_seconds, show: (cell, s) => setText(cell, formatAge(s.age_seconds))},
];

class Sequences {
  constructor() {
    this.all = [];
    this.rows = [];
    this.column = COLUMNS[0];
    this.down = false;
    this.blockSize = 16;
    this.scroll = byId("sequences-scroll");
    this.table = byId("sequences");
    this.body = this.table.tBodies[0];
    this.above = element("tr", {"aria-hidden": "true"});
    this.below = element("tr", {"aria-hidden": "true"});
    this.body.append(this.above, this.below);
    this.heads = COLUMNS.map((column) => this.head(column));
    this.table.tHead.rows[0].append(...this.heads);
    this.scroll.addEventListener("scroll", () => this.showRows());
    new ResizeObserver(() => this.draw()).observe(this.scroll);
  }

  head(column) {
    const button = element("button", {type: "button"}, column.title);
    button.addEventListener("click", () => {
      this.down = this.column === column && !this.down;
      this.column = column;
      this.draw();
    });
    return element("th", {scope: "col", class: `${column.wide ? "wide" : ""} ${column.left ? "left" : ""}`}, button);
  }

  show(state) {
    this.all = state.sequences;
    this.blockSize = state.limits.block_size;
    const {sum, total} = this.all.reduce((a, s) => ({sum: a.sum + s.resident_blocks, total: a.total + s.total_blocks}),
                                         {sum: 0, total: 0});
    this.text = `${formatCount(this.all.length)} here, ${formatCount(sum)} of ${formatCount(total)} blocks resident`;
    setText(byId("sequences-note"), this.text);
    this.draw();
  }

  draw() {
    const {key} = this.column, sign = this.down ? -1 : 1;
    this.all.sort((a, b) => sign * (key(a) - key(b)) || a.id - b.id);
    this.heads.forEach((head, i) => {
      const sorted = COLUMNS[i] === this.column;
      head.setAttribute("aria-sort", sorted ? (this.down ? "descending" : "ascending") : "none");
    });
    this.showRows();
    this.drawMap();
  }

  showRows() {
    const count = this.all.length;
    const first = Math.max(0, Math.min(count - 1, Math.floor(this.scroll.scrollTop / ROW_PX) - 2));
    const fit = Math.min(count - first, Math.ceil(this.scroll.clientHeight / ROW_PX) + 4);
    while (this.rows.length < fit) this.rows.push(this.makeRow());
    while (this.rows.length > fit) this.rows.pop().root.remove();
    this.above.style.height = `${first * ROW_PX}px`;
    this.below.style.height = `${Math.max(0, count - first - fit) * ROW_PX}px`;
    this.table.setAttribute("aria-rowcount", count + 1);
    this.rows.forEach(({root, cells}, i) => {
      root.setAttribute("aria-rowindex", first + i + 2);
      root.classList.toggle("odd", (first + i) % 2 === 1);
      cells.forEach((cell, c) => COLUMNS[c].show(cell, this.all[first + i]));
    });
    this.table.classList.toggle("empty", count === 0);
  }

  makeRow() {
    const cells = COLUMNS.map((column) => {
      const cell = element("td", column.wide ? {class: "wide"} : {});
      if (column.bar) {
        cell.bar = new Bar(column.bar);
        cell.text = element("span", {class: "figures"});
        cell.append(element("div", {class: "barred"}, cell.bar.root, cell.text));
      }
      return cell;
    });
    const root = element("tr", {class: "sequence"}, ...cells);
    this.below.before(root);
    return {root, cells};
  }

  // One column a sequence, as high as its context: what is resident below, what is only in the capacity tier above.
  drawMap() {
    const canvas = byId("map"), scale = window.devicePixelRatio || 1;  // all in pixels of the screen
    const width = canvas.width = Math.round(canvas.clientWidth * scale);
    const height = canvas.height = Math.round(canvas.clientHeight * scale);
    canvas.setAttribute("aria-label", `Blocks of every sequence: ${this.text ?? "none yet"}`);
    const blocks = this.all.map((s) => {
      const unread = Math.max(0, Math.floor((s.prompt_tokens - s.prefilled) / this.blockSize));
      return {fast: s.resident_blocks, capacity: s.total_blocks - s.resident_blocks, unread};
    });
    const top = Math.max(1, ...blocks.map((b) => b.fast + b.capacity + b.unread));
    const step = Math.min(24 * scale, width / Math.max(1, blocks.length));
    const gap = step > 4 ? 1 : 0;
    const pen = canvas.getContext("2d");
    for (const name of ["fast", "capacity", "unread"]) {
      pen.fillStyle = getComputedStyle(document.querySelector(`.swatch.${name}`)).backgroundColor;
      blocks.forEach((b, i) => {
        const under = name === "fast" ? 0 : name === "capacity" ? b.fast : b.fast + b.capacity;
        const left = Math.round(i * step), right = Math.max(left + 1, Math.round((i + 1) * step) - gap);
        pen.fillRect(left, height * (1 - (under + b[name]) / top), right - left, height * b[name] / top);
      });
    }
  }
}
