"use strict";
// Functions of both pages. All data is inserted as text: text of a task is never parsed as HTML.

const $ = (id) => document.getElementById(id);
const shown = new Map(); // part of the page -> data that it shows; a part is rebuilt only when its data changes

function make(tag, settings = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) {
    if (name === "style") Object.assign(node.style, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map((child) =>
    child instanceof Node ? child : document.createTextNode(String(child))));
  return node;
}

function fill(id, said, build) {
  const text = JSON.stringify(said);
  if (shown.get(id) === text) return;
  shown.set(id, text);
  $(id).replaceChildren(...[build(said)].flat().filter(Boolean));
}

const whole = (value) => Number(value).toLocaleString("en");
const few = (value) => Number(value).toLocaleString("en", { maximumSignificantDigits: 3 });
const dollars = (value) => value === null ? "–" : "$" + Number(value).toLocaleString("en", { maximumFractionDigits: 2 });
const pad = (value) => String(value).padStart(2, "0");

function clock(seconds) {
  if (!seconds) return "–";
  const d = new Date(1000 * seconds);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 120) return `${few(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${few(seconds / 3600)} h` : `${few(seconds / 86400)} days`;
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let k = 0;
  for (; value >= 1000 && k < units.length - 1; k++) value /= 1000;
  return `${few(value)} ${units[k]}`;
}

async function ask(path, settings = {}) {
  const answer = await fetch(`${path}?${new URLSearchParams(settings)}`, { cache: "no-store" });
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Error(said.error || `${path}: HTTP status ${answer.status}`);
  }
  return answer;
}

const pillOf = (state) => ({ complete: "complete", unfinished: "", paused: "paused" })[state] ?? "failures";

function tile(value, words, more = null) {
  return make("div", { className: "tile" }, make("b", {}, value), make("span", {}, words), more);
}

function bar(counts, total) {
  return make("div", { className: "bar" }, ...["done", "skipped", "running", "retry", "failed"].map((name) =>
    make("i", { style: { width: `${(100 * counts[name]) / Math.max(1, total)}%`, background: `var(--${name})` } })));
}

function table(heads, rows) {
  const cell = (tag, value, k) => make(tag, { className: heads[k][1] ? "n" : "" }, value);
  return make("div", { className: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map(([name], k) => cell("th", name, k)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((value, k) => cell("td", value, k)))))));
}
