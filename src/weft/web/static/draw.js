// Small helpers: elements, SVG elements, numbers with units.

const SVG = "http://www.w3.org/2000/svg";

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element. Text is always text, never markup. */
export const h = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

/** Replaces what an element holds; lists are flattened, and nothing is left out. */
export const fill = (node, ...children) => node.replaceChildren(...there(children));

const there = (children) => children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);

/** As `fill`, but writes only what differs, so that the browser lays out no more than that. Not for elements with listeners. */
export const renew = (node, ...children) => sync(node, there(children));

function sync(node, children) {
  const before = [...node.childNodes];
  children.forEach((child, index) => {
    const now = before[index], wanted = child instanceof Node ? child : document.createTextNode(child);
    if (!now) node.append(wanted);
    else if (now.nodeName !== wanted.nodeName) now.replaceWith(wanted);
    else if (now.nodeType === Node.TEXT_NODE) { if (now.data !== wanted.data) now.data = wanted.data; } else {
      for (const { name, value } of wanted.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
      for (const { name } of [...now.attributes]) if (name !== "open" && !wanted.hasAttribute(name)) now.removeAttribute(name);
      sync(now, [...wanted.childNodes]);
    }
  });
  before.slice(children.length).forEach((child) => child.remove());
}

/** The width of what a card holds. `room` was measured before any card was drawn: to ask between two drawings makes the browser lay out the page. */
export const widthIn = (card) => Math.max(300, (card.room || card.clientWidth) - 34);

export const picture = (width, height, label, ...children) =>
  s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...children);

export const known = (value) => value !== null && value !== undefined;

/** Three significant digits, never in exponent form. */
export function digits(value) {
  const size = Math.abs(value);
  if (size >= 99.95) return value.toFixed(0);
  if (size >= 9.995) return value.toFixed(1);
  if (size >= 0.0995) return value.toFixed(2);
  return size === 0 ? "0" : String(Number(value.toPrecision(3)));
}

function scaled(value, units, least) {
  for (const [unit, factor] of units) if (Math.abs(value) * factor >= least) return `${digits(value * factor)} ${unit}`;
  const [unit, factor] = units[units.length - 1];
  return `${digits(value * factor)} ${unit}`;
}

export const seconds = (value) => (known(value) ? scaled(value, [["s", 1], ["ms", 1e3], ["µs", 1e6]], 0.9995) : "–");
export const bytes = (value) =>
  known(value) ? scaled(value, [["GB", 1e-9], ["MB", 1e-6], ["kB", 1e-3], ["B", 1]], 0.9995) : "–";
export const mbps = (value) => (known(value) ? `${digits(value)} Mbps` : "–");
export const percent = (value) => (known(value) ? `${digits(value * 100)}%` : "–");

export function clock(value) {
  if (!known(value)) return "–";
  if (value < 100) return `${value.toFixed(1)} s`;
  const whole = Math.round(value), pad = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
}

/** Round numbers that cover a range, a few of them. */
export function ticks(low, high, count = 5) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999);
  const values = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) values.push(Number(value.toPrecision(12)));
  return values;
}

export const key = (name) => s("svg", { viewBox: "0 0 12 12", class: `key ${name}`, "aria-hidden": "true" }, s("rect", { width: 12, height: 12, rx: 2, class: name }));
