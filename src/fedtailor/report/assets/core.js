"use strict";
// Small helpers: elements, numbers in words, scales, packed arrays. Text from outside (names of
// clients and methods) only ever goes into the page as text, never as markup.
const DATA = JSON.parse(document.getElementById("numbers").textContent);
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// --- numbers for people ---
const isNumber = (value) => value !== null && value !== undefined && Number.isFinite(value);
// as Python rounds, whose sentences stand on the same page: what lies in the middle goes to the even digit
function fixed(value, digits) {
  const text = value.toFixed(digits), exact = value.toFixed(digits + 55);
  const middle = /^50*$/.test(exact.slice(-55)), cut = exact.slice(0, -55).replace(/\.$/, "");
  return middle && "02468".includes(cut.at(-1)) ? cut : text;
}
const inWords = (value, digits) => (isNumber(value) ? fixed(value, digits).replace("-", "−") : "–");
const perCent = (value, digits = 1) => (isNumber(value) ? inWords(100 * value, digits) : "–");
// what the runs are judged by: values and gains as they are shown, and which way is better
const METRIC = DATA.metric, TIMES = METRIC.percent ? 100 : 1, UP = METRIC.higher ? 1 : -1;
const UNIT = METRIC.percent ? " %" : "", GAIN_UNIT = METRIC.percent ? " points" : "";
const FLOOR = METRIC.least === null ? undefined : TIMES * METRIC.least;
const CEILING = METRIC.most === null ? undefined : TIMES * METRIC.most;
const inMetric = (value, more = 0) => (isNumber(value) ? inWords(TIMES * value, METRIC.digits + more) : "–");
const signed = (value) => {
  if (!isNumber(value)) return "–";
  const size = fixed(Math.abs(TIMES * value), METRIC.digits);
  return (+size === 0 ? "" : value > 0 ? "+" : "−") + size; // what rounds to 0 has no sign
};
const fromTo = (ends) => ends.map((v, k) => (v === null ? ["−∞", "∞"][k] : signed(v))).join(" to ");
const onAxis = (value) => (Number.isInteger(value) ? short(value) : METRIC.percent ? inWords(value, 1) : short(value));
const plural = (count, one, many = one + "s") => `${count.toLocaleString("en-GB")} ${count === 1 ? one : many}`;
function inBytes(count) {
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (count >= size) return `${+(count / size).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(count)} B`;
}
function short(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e4 || size < 1e-3)) return value.toExponential(1).replace("-", "−");
  return String(+value.toPrecision(3)).replace("-", "−");
}
const joined = (words) =>
  words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;

// --- packed arrays ---
const unpacked = new Map();
function unpack(packed) {
  if (!packed) return null;
  if (unpacked.has(packed)) return unpacked.get(packed);
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const kinds = { u16: Uint16Array, u32: Uint32Array, s8: Uint8Array, s16: Uint16Array };
  const codes = new kinds[packed.kind](bytes.buffer);
  const steps = { s8: 254, s16: 65534 }[packed.kind];
  const at = steps
    ? (i) => (codes[i] > steps ? null : packed.low + ((packed.high - packed.low) * codes[i]) / steps)
    : (i) => codes[i];
  const found = { codes, at, shape: packed.shape, low: packed.low, high: packed.high };
  unpacked.set(packed, found);
  return found;
}

// --- scales ---
const linear = ([a, b], [p, q]) => (value) => p + ((value - a) / (b - a || 1)) * (q - p);
function ticks(low, high, count) {
  const span = high - low || 1;
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => span / s <= count + 0.5) || rough;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) {
    found.push(+(k * step).toPrecision(12)); // counted, not added up: 0 is 0
  }
  return found;
}
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) {
    if (!isNumber(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
  }
  return low <= high ? [low, high] : [0, 1];
}

// --- methods: colours, dashes, which are shown ---
const METHODS = DATA.methods;
const LABELS = METHODS.map((row) => row.label);
const ALONE = DATA.yardstick;
const RANKED = METHODS.map((_, i) => i).sort((a, b) => UP * (meanOf(b) - meanOf(a)));
const COLOURS = METHODS.map(() => 0);
const DASHES = ["", "6 3", "2 3", "9 3 2 3", "1 3"];
let others = 0;
METHODS.forEach((_, i) => {
  if (i !== ALONE) COLOURS[i] = 1 + others++;
});
function meanOf(i) {
  const found = METHODS[i].score.mean;
  return found ? found.mean : -UP * Number.MAX_VALUE; // last of all
}
const colour = (i) => `var(--m${COLOURS[i] === 0 ? 0 : 1 + ((COLOURS[i] - 1) % 7)})`;
const dash = (i) => (i === ALONE ? "5 3" : DASHES[Math.floor(Math.max(0, COLOURS[i] - 1) / 7) % DASHES.length]);

const MANY = 9; // more lines than that cannot be told apart: the rest waits behind the legend
const state = { hidden: new Set(), client: 0 };
if (METHODS.length > MANY) {
  RANKED.filter((i) => i !== ALONE).slice(MANY - 1).forEach((i) => state.hidden.add(i));
}
const shown = () => METHODS.map((_, i) => i).filter((i) => !state.hidden.has(i));
const listeners = { methods: [], client: [], theme: [] };
const when = (what, act) => listeners[what].push(act);
const tell = (what) => listeners[what].forEach((act) => act());

/** A table that stands beside a chart for those who read rather than look; made when opened. */
function numbersBelow(title, make) {
  const box = el("details", {}, el("summary", {}, title));
  box.addEventListener("toggle", () => {
    if (!box.open) return;
    box.querySelector(".scroll")?.remove();
    const { head, body } = make();
    const row = (cells, first) =>
      el("tr", {}, cells.map((text, i) =>
        el(first || i === 0 ? "th" : "td", { scope: first ? "col" : i === 0 ? "row" : null, class: i ? "number" : null }, text)));
    box.append(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title },
      el("table", {}, el("thead", {}, row(head, true)), el("tbody", {}, body.map((cells) => row(cells, false))))));
  });
  return box;
}

/** Draws a chart now, when its width changes and when methods are shown or hidden. */
function keepDrawn(box, draw) {
  let width = 0;
  const again = () => {
    width = Math.round(box.clientWidth);
    if (width > 0) draw(width);
  };
  new ResizeObserver(() => {
    if (Math.round(box.clientWidth) !== width) again();
  }).observe(box);
  again();
  return again;
}
