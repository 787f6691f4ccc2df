// Curves with axes, a readout under the pointer or by the arrow keys.

import { digits, fill, h, known, picture, s, ticks, widthIn } from "./draw.js";

/** One chart. Series: {name, x: [], y: [], low?, high?, dots?}. */
export function chart(title, series, width, options = {}) {
  const lines = series.filter((line) => line.x.length);
  if (!lines.length) return null;
  const height = options.height || 190, left = 54, bottom = 24, top = 8, right = 8;
  const xs = lines.flatMap((line) => line.x), ys = lines.flatMap((line) => [...line.y, ...(line.low || []), ...(line.high || [])]).filter(known);
  if (!ys.length) return null;
  const xMin = Math.min(...xs), xMax = Math.max(...xs, xMin + 1);
  let yMin = Math.min(...ys), yMax = Math.max(...ys);
  if (yMin === yMax) { yMin -= Math.abs(yMin) * 0.1 || 0.1; yMax += Math.abs(yMax) * 0.1 || 0.1; }
  if (options.zero && yMin > 0 && yMin < yMax * 0.5) yMin = 0;
  const px = (x) => left + ((x - xMin) / (xMax - xMin)) * (width - left - right);
  const py = (y) => top + (1 - (y - yMin) / (yMax - yMin)) * (height - top - bottom);
  const parts = [];
  for (const y of ticks(yMin, yMax, 4)) parts.push(s("line", { class: "grid", x1: left, x2: width - right, y1: py(y), y2: py(y) }), s("text", { class: "small", x: left - 6, y: py(y) + 4, "text-anchor": "end" }, digits(y)));
  for (const x of ticks(xMin, xMax, width > 500 ? 7 : 4).filter(Number.isInteger)) parts.push(s("text", { class: "small", x: px(x), y: height - 6, "text-anchor": "middle" }, String(x)));
  lines.forEach((line, index) => {
    const colour = `c${(options.colours || [0, 1, 2, 3, 4])[index % 5]}`;
    const points = line.x.map((x, i) => [x, line.y[i]]).filter(([, y]) => known(y));
    if (line.low) {
      const over = line.x.map((x, i) => `${px(x)},${py(line.high[i] ?? yMax)}`), under = line.x.map((x, i) => `${px(x)},${py(line.low[i] ?? yMin)}`).reverse();
      parts.push(s("polygon", { class: `band ${colour}`, points: [...over, ...under].join(" ") }));
    }
    parts.push(s("polyline", { class: `curve ${colour}`, "data-curve": line.name, points: points.map(([x, y]) => `${px(x)},${py(y)}`).join(" ") }));
    if (line.dots) points.forEach(([x, y]) => parts.push(s("circle", { class: `dot ${colour}`, cx: px(x), cy: py(y), r: 3 })));
  });
  const cursor = s("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  const newest = lines.map((line) => `${line.name} ${digits(line.y.filter(known).at(-1) ?? 0)}`).join(", ");
  const svg = picture(width, height, `${title} by minibatch, from ${xMin} to ${xMax}. Newest: ${newest}.`, parts, cursor);
  const readout = h("p", { class: "readout", "aria-live": "polite" }, `Newest: ${newest}`);
  const longest = lines.reduce((a, b) => (b.x.length > a.x.length ? b : a));
  let at = longest.x.length - 1;
  const show = (x) => {
    cursor.setAttribute("x1", px(x)); cursor.setAttribute("x2", px(x)); cursor.setAttribute("visibility", "visible");
    const words = lines.map((line) => { const i = nearest(line.x, x); return known(line.y[i]) ? `${line.name} ${digits(line.y[i])}` : null; }).filter(Boolean);
    readout.textContent = `Minibatch ${x}: ${words.join(", ")}`;
  };
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("pointermove", (event) => {
    const place = svg.getBoundingClientRect(), x = xMin + (((event.clientX - place.left) / place.width) * width - left) / (width - left - right) * (xMax - xMin);
    at = nearest(longest.x, x); show(longest.x[at]);
  });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (!by) return;
    event.preventDefault();
    at = Math.max(0, Math.min(longest.x.length - 1, at + by)); show(longest.x[at]);
  });
  const legend = lines.length > 1 ? h("ul", { class: "legend" }, lines.map((line, index) => h("li", {},
    s("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, s("line", { class: `curve c${(options.colours || [0, 1, 2, 3, 4])[index % 5]}`, x1: 0, x2: 12, y1: 6, y2: 6 })), ` ${line.name}`))) : null;
  return h("div", { class: "chart" }, h("h3", { class: "quiet" }, title), legend, svg, readout);
}

function nearest(values, wanted) {
  let best = 0;
  for (let i = 1; i < values.length; i += 1) if (Math.abs(values[i] - wanted) < Math.abs(values[best] - wanted)) best = i;
  return best;
}

export function drawCurves(card, { curves }) {
  const width = widthIn(card);
  const tests = Object.entries(curves.tests), line = (name, rows) => ({ name, x: rows.map((row) => row[0]), y: rows.map((row) => row[1]), dots: rows.length < 60 });
  const losses = [{ name: "training loss", x: curves.step, y: curves.loss, low: curves.low, high: curves.high }, ...tests.filter(([name]) => name === "loss").map(([, rows]) => line("test loss", rows))];
  const others = tests.filter(([name]) => name !== "loss").map(([name, rows]) => line(`test ${name}`, rows));
  const rate = [{ name: "learning rate", x: curves.step, y: curves.lr }];
  const charts = [chart("Loss", losses, width, { zero: true }), chart("Evaluations", others, width, { height: 140, colours: [2, 3, 4, 0, 1] }),
    curves.lr.some(known) ? chart("Learning rate", rate, width, { height: 110, colours: [4] }) : null].filter(Boolean);
  fill(card, h("h2", {}, "Curves"), ...(charts.length ? charts : [h("p", { class: "quiet" }, "No minibatch has been reported yet.")]));
}

/** The losses of several runs in one picture. */
export function drawTogether(card, runs) {
  const width = widthIn(card);
  const series = runs.filter(({ parts }) => parts.curves).map(({ name, parts }) => ({ name, x: parts.curves.step, y: parts.curves.loss }));
  const picture = chart("Training loss of all shown runs", series, width, { zero: true });
  fill(card, h("h2", {}, "Side by side"), picture || h("p", { class: "quiet" }, "No minibatch has been reported yet."));
}
