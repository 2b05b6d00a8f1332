"use strict";
// Asks /state once a second and hands the answer to the parts of the page.

const POLL_MS = 1000, PATIENCE_MS = 5000;

const overview = new Overview(), sequences = new Sequences();
new Chat();

let previous = null;
let pushed = performance.now();  // when the charts last moved on

function showTrouble(text) {
  const shown = byId("trouble");
  setText(shown, text ?? "");
  shown.hidden = !text;
}

function showConnection(name, text) {
  byId("connection").className = `pill ${name}`;
  setText(byId("connection"), text);
}

// Whole seconds since the charts last moved on: more than one where the browser or the server was slow.
function pointsSince() {
  const points = Math.max(1, Math.min(HISTORY, Math.round((performance.now() - pushed) / 1e3)));
  pushed = performance.now();
  return points;
}

function show(now) {
  const restarted = previous && now.uptime_seconds < previous.uptime_seconds;
  const was = restarted ? null : previous;
  const dt = was ? now.uptime_seconds - was.uptime_seconds : 0;
  if (was && dt < 0.1) return;
  previous = now;
  const {max_context: context, top_k_blocks: top, resident_blocks: resident, block_size: size} = now.limits;
  document.title = `${now.model} · OasisKV`;
  setText(byId("model"), now.model);
  setText(byId("about"), `up ${formatAge(now.uptime_seconds)} · context ${formatCount(context)} · ` +
    `reads ${formatCount(top)} and keeps ${formatCount(resident)} blocks of ${size} · process ${formatBytes(now.process.rss_bytes)} · v${now.version}`);
  overview.show(now, was, dt, pointsSince());
  sequences.show(now);
}

async function poll() {
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const answer = await fetch("state", {cache: "no-store", headers: authorization(), signal});
    if (!answer.ok) throw new Error(await errorOf(answer));
    const now = await answer.json();
    show(now);
    showTrouble(null);
    showConnection(now.draining ? "warn" : "good", now.draining ? "shutting down" : "live");
  } catch (error) {
    const silent = error instanceof TypeError || error.name === "TimeoutError";
    overview.gap(pointsSince());
    showConnection("bad", silent ? "no answer" : "error");
    showTrouble(silent ? "The server does not answer; what is shown is old. Trying again every second."
                       : `/state: ${error.message}`);
  }
  setTimeout(poll, POLL_MS);
}

// The theme is the system's until the button is pressed; the choice is kept where the browser allows it.
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Switch to the ${theme === "dark" ? "light" : "dark"} theme`);
  sequences.drawMap();
}

function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("oasis-theme");
  } catch {}
  const current = () => chosen ?? (system.matches ? "dark" : "light");
  system.addEventListener("change", () => setTheme(current()));
  byId("theme").addEventListener("click", () => {
    chosen = current() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("oasis-theme", chosen);
    } catch {}
    setTheme(chosen);
  });
  setTheme(current());
}

startTheme();
poll();
