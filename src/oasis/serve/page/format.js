"use strict";
// Figures as text, elements from tags, errors as sentences.

const UNKNOWN = "–";

function formatCount(n) {
  if (n === null || !isFinite(n)) return UNKNOWN;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (n >= size) return (n / (unit === "k" ? 1e3 : size)).toFixed(n >= 10 * size ? 0 : 1) + unit;
  }
  return n >= 100 || Number.isInteger(n) ? Math.round(n).toLocaleString("en") : n.toFixed(1);
}

function formatBytes(n) {
  if (n === null || !isFinite(n)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1000 && unit + 1 < units.length) {
    n /= 1024;
    ++unit;
  }
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(n >= 10 ? 1 : 2)} ${units[unit]}`;
}

function formatSeconds(s) {
  if (s === null || !isFinite(s)) return UNKNOWN;
  if (s < 0.1) return `${(s * 1e3).toFixed(s < 0.01 ? 1 : 0)} ms`;
  if (s < 10) return `${s.toFixed(2)} s`;
  return s < 100 ? `${s.toFixed(1)} s` : formatAge(s);
}

function formatAge(s) {
  s = Math.floor(s);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

function formatShare(x) {
  return x === null || !isFinite(x) ? UNKNOWN : `${(100 * x).toFixed(x > 0.9995 || x < 0.0005 ? 0 : 1)}%`;
}

// element("p", {class: "note"}, "text", child): strings become text, never HTML.
function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function byId(id) {
  return document.getElementById(id);
}

// The key typed in, for every request: /state needs none, but a proxy may ask for it.
function authorization() {
  const key = byId("api-key").value.trim();
  return key ? {"Authorization": `Bearer ${key}`} : {};
}

// What an answer with an error status says, and what to do about it.
async function errorOf(answer) {
  let message = "";
  try {
    message = JSON.parse(await answer.text()).error.message;
  } catch {
    message = answer.statusText || "no explanation";
  }
  const retry = answer.headers.get("Retry-After");
  if (answer.status === 401) message += " (type it into the field API key)";
  if (answer.status === 429 && retry) message += ` (in ${retry} s)`;
  return `${answer.status}: ${message}`;
}
