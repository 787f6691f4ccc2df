// Where a moving client is, and which servers it can reach.

import { digits, fill, h, picture, s, widthIn } from "./draw.js";

export function drawMap(card, { map, fleet }) {
  const places = Object.entries(map.places || {});
  card.hidden = !places.length;
  if (card.hidden) return;
  const width = widthIn(card), points = [...places.map(([, place]) => place), ...map.trail];
  const low = [0, 1].map((axis) => Math.min(...points.map((p) => p[axis]))), high = [0, 1].map((axis) => Math.max(...points.map((p) => p[axis])));
  const scale = Math.min((width - 80) / (high[0] - low[0] || 1), 240 / (high[1] - low[1] || 1)), height = (high[1] - low[1]) * scale + 70;
  const shift = (width - (high[0] - low[0]) * scale) / 2;
  const at = ([x, y]) => [shift + (x - low[0]) * scale, height - 35 - (y - low[1]) * scale];
  const devices = Object.fromEntries(fleet.devices.map((device) => [device.name, device]));
  const client = map.moves, here = at(map.places[client] || points[0]);
  const lines = places.filter(([name]) => name !== client && devices[name] && devices[name].in_reach !== false).map(([, place]) => {
    const [x, y] = at(place);
    return s("line", { class: "link", x1: here[0], y1: here[1], x2: x, y2: y });
  });
  const nodes = places.map(([name, place]) => {
    const [x, y] = at(place), device = devices[name] || { tier: "device", state: "works" };
    return s("g", { transform: `translate(${x} ${y})` }, s("circle", { class: `node ${device.tier} ${device.in_reach === false ? "lost" : device.state}`, r: name === client ? 9 : 7 }),
      s("text", { class: "halo", y: -13, "text-anchor": "middle" }, name + (device.in_reach === false ? " (out of reach)" : "")));
  });
  const ruler = 10 ** Math.floor(Math.log10(Math.max(1, (high[0] - low[0]) / 2)));
  const words = places.filter(([name]) => devices[name] && devices[name].in_reach === false).map(([name]) => name).join(", ");
  fill(card, h("h2", {}, "Map", h("small", {}, `${client} moves`)),
    picture(width, height, `${client} is at ${(map.places[client] || []).map(digits).join(", ")} metres. Out of reach: ${words || "nobody"}.`,
      s("polyline", { class: "curve c1", points: map.trail.map((point) => at(point).join(",")).join(" ") }), lines, nodes,
      s("line", { class: "axis", x1: 10, x2: 10 + ruler * scale, y1: height - 8, y2: height - 8 }), s("text", { class: "small", x: 14 + ruler * scale, y: height - 4 }, `${ruler} m`)));
}
