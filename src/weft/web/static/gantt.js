// Who does what when: predicted above measured, on one axis.

import { bytes, digits, fill, h, key, picture, s, seconds, ticks, widthIn } from "./draw.js";

const KINDS = ["load", "forward", "loss", "backward", "update", "emit", "transfer", "wait"];
const MANY_ROWS = 30;

function rowsOf(sides) {
  const names = [...new Set(sides.flatMap((side) => side.rows))];
  const channels = new Set(sides.flatMap((side) => side.bars.filter((bar) => bar[1] === "transfer").map((bar) => side.rows[bar[0]])));
  return [...names.filter((name) => !channels.has(name)), ...names.filter((name) => channels.has(name))];
}

function bars(side, place, lane, down, scale, x0, kind) {
  return side.bars.filter((bar) => side.rows[bar[0]] in place).map(([row, what, start, end, step, label, size]) => {
    const name = side.rows[row], y = place[name] + down, waits = what === "wait";
    const known = KINDS.includes(what) ? what : "other";
    const told = `${kind}: ${name} ${what} ${label}, minibatch ${step}, ${seconds(end - start)}${size ? `, ${bytes(size)}` : ""}`;
    return s("rect", { class: `${known} ${kind}${step % 2 ? " odd" : ""}`, x: x0 + start * scale, y: y + (waits ? lane / 2 - 1 : 1),
      width: Math.max(0.7, (end - start) * scale - 0.6), height: waits ? 2 : lane - 2, rx: 1.5 }, s("title", {}, told));
  });
}

export function ganttPicture(sides, width) {
  const shown = sides.filter((side) => side.value && side.value.bars && side.value.bars.length);
  if (!shown.length) return null;
  const all = rowsOf(shown.map((side) => side.value)), rows = all.slice(0, MANY_ROWS);
  const left = 104, lane = shown.length > 1 ? 13 : 18, gap = 9, tall = lane * shown.length + gap;
  const end = Math.max(...shown.flatMap((side) => side.value.bars.map((bar) => bar[3]))) || 1;
  const scale = (width - left - 8) / end, full = rows.length * tall + 26;
  const place = Object.fromEntries(rows.map((name, index) => [name, index * tall + 2])), parts = [];
  for (const at of ticks(0, end, width > 600 ? 8 : 4)) {
    const x = left + at * scale;
    parts.push(s("line", { class: "grid", x1: x, x2: x, y1: 0, y2: rows.length * tall }), s("text", { class: "small", x, y: rows.length * tall + 16, "text-anchor": "middle" }, end < 1 ? `${digits(at * 1e3)} ms` : `${digits(at)} s`));
  }
  rows.forEach((name) => parts.push(s("text", { x: left - 8, y: place[name] + (lane * shown.length) / 2 + 4, "text-anchor": "end" }, name.replace(">", " → "))));
  shown.forEach((side, index) => parts.push(...bars(side.value, place, lane, index * lane, scale, left, side.kind)));
  const label = shown.map((side) => `${side.kind}: ${seconds(side.value.step_s)} a minibatch`).join("; ");
  const svg = picture(width, full, `What each device and link does when. ${label}.`, parts);
  return all.length > rows.length ? h("div", {}, svg, h("p", { class: "readout" }, `${rows.length} of ${all.length} rows are shown.`)) : svg;
}

export function drawGantt(card, { predicted, measured }) {
  const width = widthIn(card);
  const sides = [{ kind: "predicted", value: predicted }, { kind: "measured", value: measured }];
  const svg = ganttPicture(sides, width);
  const used = new Set(sides.flatMap((side) => (side.value.bars || []).map((bar) => bar[1])));
  const words = sides.filter((side) => (side.value.bars || []).length).map((side) => `${side.kind} ${seconds(side.value.step_s)} a minibatch`).join(", ");
  fill(card, 
    h("h2", {}, "Time", h("small", {}, words + (measured.minibatches ? `; the newest ${measured.minibatches} minibatches` : ""))),
    h("ul", { class: "legend" }, KINDS.filter((kind) => used.has(kind)).map((kind) => h("li", {}, key(kind), ` ${kind}`)), used.size ? h("li", {}, "in each row: predicted above measured") : null),
    svg || h("p", { class: "quiet" }, "Nothing has been done yet."));
}
