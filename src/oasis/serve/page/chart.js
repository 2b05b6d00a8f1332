"use strict";
// Sparklines and bars, as SVG and plain elements: their colours come from the style sheet.

const HISTORY = 180;  // points, one a second

// A line for each series over the last HISTORY points; null is a gap. `top`: the value at the upper edge; by default the
// highest that is shown. `describe(values, age)` names a point for the pointer and for screen readers.
class Sparkline {
  constructor({series = 1, top = null, name = "", describe}) {
    this.values = Array.from({length: series}, () => []);
    this.top = top;
    this.name = name;
    this.describe = describe;
    this.area = element("path", {class: "area"});
    this.lines = this.values.map((_, i) => element("path", {class: `line line-${i}`}));
    this.mark = element("line", {class: "mark", y1: 0, y2: 100});
    this.root = element("svg", {class: "spark", viewBox: `0 0 ${HISTORY - 1} 100`, preserveAspectRatio: "none", role: "img"},
                        this.area, ...this.lines, this.mark);
    this.onpoint = null;  // called with a text, or null when the pointer leaves
    this.root.addEventListener("pointermove", (event) => this.point(event));
    this.root.addEventListener("pointerleave", () => this.point(null));
  }

  // `points`: the seconds that the values stand for.
  push(points, ...values) {
    values.forEach((value, i) => {
      this.values[i].push(...Array(points).fill(value));
      this.values[i].splice(0, this.values[i].length - HISTORY);
    });
    this.draw();
  }

  draw() {
    const known = this.values.flat().filter((v) => v !== null);
    const top = this.top ?? Math.max(1e-9, ...known) * 1.08;
    this.lines.forEach((line, i) => line.setAttribute("d", this.path(this.values[i], top)));
    this.area.setAttribute("d", this.values.length === 1 ? this.path(this.values[0], top, true) : "");
    const last = this.values.map((v) => v.at(-1) ?? null);
    this.root.setAttribute("aria-label", `${this.name}, now ${this.describe(last)}`);
  }

  // The line, or (closed) the area under it; the newest point lies at the right edge.
  path(values, top, closed = false) {
    const offset = HISTORY - values.length;
    let d = "", begin = null;
    const end = (x) => {
      if (closed && begin !== null) d += `L${x} 100L${begin} 100Z`;
      begin = null;
    };
    values.forEach((value, i) => {
      const x = offset + i;
      if (value === null) return end(x - 1);
      const y = (98 - 96 * Math.min(1, value / top)).toFixed(1);
      d += begin === null ? `M${x} ${y}` : `L${x} ${y}`;
      begin ??= x;
    });
    end(HISTORY - 1);
    return d;
  }

  point(event) {
    const box = this.root.getBoundingClientRect();
    const x = event ? Math.round((event.clientX - box.left) / box.width * (HISTORY - 1)) : -1;
    const at = this.values.map((v) => v[x - HISTORY + v.length] ?? null);
    const shown = event && at.some((v) => v !== null);
    this.root.classList.toggle("pointed", Boolean(shown));
    this.mark.setAttribute("x1", x);
    this.mark.setAttribute("x2", x);
    const age = HISTORY - 1 - x;
    this.onpoint?.(shown ? `${this.describe(at)}, ${age ? `${age} s ago` : "now"}` : null);
  }
}

// A horizontal bar of named parts, each a share of the whole: set({fast: .3, cached: .1}, "what it says").
class Bar {
  constructor(parts) {
    this.parts = Object.fromEntries(parts.map((name) => [name, element("span", {class: `part ${name}`})]));
    this.root = element("div", {class: "bar", role: "img"}, ...Object.values(this.parts));
  }

  set(shares, label) {
    for (const [name, part] of Object.entries(this.parts)) {
      part.style.width = `${(100 * Math.max(0, Math.min(1, shares[name] || 0))).toFixed(2)}%`;
    }
    this.root.setAttribute("aria-label", label);
  }
}
