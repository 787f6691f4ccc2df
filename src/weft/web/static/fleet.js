// The fleet as a graph: devices by tier, links with their rates and losses.

import { digits, h, known, mbps, percent, picture, renew, s, seconds, widthIn } from "./draw.js";

const TIERS = ["device", "edge", "cloud"];
const SIGNS = { works: "●", idle: "○", silent: "◐", lost: "✕" };
const MANY = 14, ROW = 92, COLUMN = 185; // a box and a link's words need so much width

const tierOf = (devices, name) => devices.find((device) => device.name === name)?.tier;

/** Places of all devices, and the picture's height. */
function layout(devices, links, media, width, many) {
  const tiers = TIERS.filter((tier) => devices.some((device) => device.tier === tier));
  const places = {};
  if (tiers.length === 1 || devices.length > 3 * MANY) {
    const size = Math.min(width, devices.length > MANY ? 640 : 420), margin = many ? 30 : 75;
    devices.forEach((device, index) => {
      const angle = (2 * Math.PI * index) / devices.length - Math.PI / 2;
      places[device.name] = [width / 2 + Math.cos(angle) * (width / 2 - margin), size / 2 + Math.sin(angle) * (size / 2 - 40)];
    });
    for (const medium of media) places[`medium ${medium.name}`] = [width / 2, size / 2];
    return [places, size];
  }
  if (!many && width - 140 < COLUMN * (tiers.length - 1)) { // a phone: one below the other
    const sorted = tiers.flatMap((tier) => devices.filter((device) => device.tier === tier));
    sorted.forEach((device, row) => { places[device.name] = [66, ROW * (row + 0.5)]; });
    media.forEach((medium, row) => { places[`medium ${medium.name}`] = [width - 62, ROW * (row + 1)]; });
    return [places, ROW * sorted.length];
  }
  const most = Math.max(...tiers.map((tier) => devices.filter((d) => d.tier === tier).length));
  const over = tiers.length > 2 && links.some((link) => link.between.some((end) => tierOf(devices, end) === tiers[0]) && link.between.some((end) => tierOf(devices, end) === tiers[2]));
  const room = over ? 64 : 0, height = room + Math.max(170, most * (devices.length > MANY ? 34 : many ? 52 : ROW));
  tiers.forEach((tier, column) => {
    const inside = devices.filter((device) => device.tier === tier);
    const x = 70 + (column * (width - 140)) / (tiers.length - 1);
    inside.forEach((device, row) => { places[device.name] = [x, room + ((row + 0.5) * (height - room)) / inside.length]; });
  });
  Object.defineProperties(places, { columns: { value: (width - 140) / (tiers.length - 1) }, small: { value: many } });
  for (const medium of media) {
    const ends = [medium.gateway, ...medium.members].map((name) => places[name]).filter(Boolean);
    places[`medium ${medium.name}`] = [0, 1].map((axis) => ends.reduce((sum, end) => sum + end[axis], 0) / ends.length);
  }
  return [places, height];
}

function rateWords(link) {
  const rates = link.up_mbps === link.down_mbps ? mbps(link.up_mbps) : `${digits(link.up_mbps)} / ${digits(link.down_mbps)} Mbps`;
  const loss = Math.max(...link.losses);
  return [rates, loss ? `${percent(loss)} lost` : null, link.latency_ms ? `${digits(link.latency_ms)} ms` : null].filter(Boolean);
}

/** Where on a link from a to b its words stand: nearer the end with fewer links, where less lies in the way. */
function middle(links, [first, second]) {
  const ends = (name) => links.filter((link) => link.between.includes(name)).length;
  return 0.5 + 0.08 * Math.sign(ends(first) - ends(second));
}

/** How a link runs: straight, around others of its own column, or over the top of the columns between. */
function way(places, [first, second], links) {
  const a = places[first], b = places[second];
  if (!a || !b) return null;
  const rows = Math.round(Math.abs(a[1] - b[1]) / (places.small ? 52 : ROW));
  if (Math.abs(a[0] - b[0]) < 2) {
    const out = a[0] + (places.small ? 14 + 16 * rows : 76 + 26 * rows), edge = places.small ? 8 : 45;
    return { path: `M${a[0] + edge} ${a[1]}C${out} ${a[1]} ${out} ${b[1]} ${b[0] + edge} ${b[1]}`, at: [a[0] + 70 + 19 * rows - (rows > 1 ? 4 : 12), a[1] + (b[1] - a[1]) * (rows > 1 ? 1 / 3 : 1 / 2)], side: true };
  }
  if (places.columns && Math.abs(a[0] - b[0]) > places.columns * 1.5) {
    return { path: `M${a[0]} ${a[1]}C${a[0] + (b[0] - a[0]) * 0.1} -10 ${b[0] - (b[0] - a[0]) * 0.1} -10 ${b[0]} ${b[1]}`, at: [(a[0] + b[0]) / 2, Math.max(16, (a[1] + b[1]) / 8 - 7)] };
  }
  const part = middle(links, [first, second]);
  return { path: `M${a[0]} ${a[1]}L${b[0]} ${b[1]}`, at: [a[0] + (b[0] - a[0]) * part, a[1] + (b[1] - a[1]) * part] };
}

/** The ground under a link's words, so that no line runs through them. */
function plate(texts, x, y, side) {
  const width = 6.6 * Math.max(...texts.map((text) => text.length)) + 4;
  return s("rect", { class: "plate", x: side ? x - 3 : x - width / 2, y: y - 15, width, height: 13 * texts.length + 4, rx: 4 });
}

/** A link: its lines, and its words, which are drawn above all lines. */
function line(places, link, links, label) {
  const drawn = way(places, link.between, links);
  if (!drawn) return { lines: [], words: [] };
  const used = Math.max(link.up_used || 0, link.down_used || 0), words = rateWords(link), [x, y] = drawn.at;
  const told = `${link.between[0]} – ${link.between[1]}: ${words.join(", ")}; in use: → ${mbps(link.up_used)}, ← ${mbps(link.down_used)}`;
  const anchor = drawn.side ? "start" : "middle";
  const lines = [
    s("path", { class: "link", d: drawn.path, "stroke-width": 1 + Math.max(0, Math.log10(Math.max(link.up_mbps, link.down_mbps) + 1)) }, s("title", {}, told)),
    used > 0 ? s("path", { class: "used", d: drawn.path, "stroke-width": 2.2 }) : null,
  ];
  const texts = label ? [words[0], words.slice(1).join(" · ")].filter(Boolean) : [];
  return { lines, words: texts.length ? [plate(texts, x, y, drawn.side), ...texts.map((text, row) => s("text", { class: "small", x, y: y - 4 + 13 * row, "text-anchor": anchor }, text))] : [] };
}

const held = (plan, name) => plan.shards.filter((shard) => shard.device === name);

/** What a device holds, in a few words. */
export function holding(plan, name) {
  const shards = held(plan, name);
  if (!shards.length) return plan.standby.some((shard) => shard.device === name) ? "stands by" : "no layers";
  const first = Math.min(...shards.map((shard) => shard.layers[0])), last = Math.max(...shards.map((shard) => shard.layers[1]));
  const all = first === 0 && last === plan.layers.length - 1;
  const layers = all ? "all layers" : first === last ? `layer ${first}` : `layers ${first}–${last}`;
  return shards.length === 1 && !shards[0].part.startsWith("all") ? `${layers}, ${shards[0].part}` : layers;
}

function box(device, plan, source, [x, y]) {
  const away = device.in_reach === false, words = away ? "◌ out of reach" : `${SIGNS[device.state]} ${device.state}`;
  const layers = holding(plan, device.name);
  const short = layers.length > 20 ? `${layers.slice(0, 19)}…` : layers;
  const told = `${device.name}, ${device.tier}: ${device.state}${away ? ", out of reach" : ""}, ${layers}` + (device.slowdown > 1 ? `, ${digits(device.slowdown)} times slower` : "");
  return s("g", { transform: `translate(${x} ${y})`, "data-device": device.name, "data-state": device.state },
    s("title", {}, told),
    s("rect", { class: `node ${device.tier} ${device.state}`, x: -60, y: -31, width: 120, height: 62, rx: 10 }),
    s("text", { y: -13, "text-anchor": "middle", "font-weight": 600 }, device.name + (source ? " ▤" : "")),
    s("text", { class: "small", y: 4, "text-anchor": "middle" }, short),
    s("text", { class: `small word ${away ? "silent" : device.state}`, y: 20, "text-anchor": "middle" }, words));
}

function dot(device, plan, [x, y]) {
  return s("g", { transform: `translate(${x} ${y})`, "data-device": device.name, "data-state": device.state },
    s("title", {}, `${device.name}, ${device.tier}: ${device.state}, ${holding(plan, device.name)}`),
    s("circle", { class: `node ${device.tier} ${device.state}`, r: 9 }),
    s("text", { class: `small word ${device.state}`, y: 4, "text-anchor": "middle", "aria-hidden": "true" }, device.state === "works" ? "" : SIGNS[device.state]),
    s("text", { class: "small halo", y: 22, "text-anchor": "middle" }, device.name));
}

export function drawFleet(card, { fleet, plan }) {
  const width = widthIn(card), many = fleet.devices.length > MANY || (width < 520 && fleet.devices.length > 4);
  const [places, height] = layout(fleet.devices, fleet.links, fleet.media, width, many);
  const label = fleet.links.length <= 24 && (!many || width >= 520);
  const drawn = fleet.links.map((link) => line(places, link, fleet.links, label));
  const lines = drawn.map((one) => one.lines), words = drawn.map((one) => one.words);
  const hubs = fleet.media.map((medium) => {
    const centre = places[`medium ${medium.name}`];
    const spokes = [medium.gateway, ...medium.members].filter((name) => places[name]).map((name) =>
      s("path", { class: name === medium.gateway || medium.used > 0 ? "link used" : "link", d: `M${centre[0]} ${centre[1]}L${places[name][0]} ${places[name][1]}`, "stroke-width": 1.5 }));
    return [spokes, s("ellipse", { class: "node edge", cx: centre[0], cy: centre[1], rx: 58, ry: 22 }),
      s("text", { x: centre[0], y: centre[1] - 2, "text-anchor": "middle", "font-weight": 600 }, medium.name),
      s("text", { class: "small", x: centre[0], y: centre[1] + 12, "text-anchor": "middle" }, mbps(medium.mbps) + (medium.loss ? `, ${percent(medium.loss)} lost` : ""))];
  });
  const nodes = fleet.devices.map((device) =>
    many ? dot(device, plan, places[device.name]) : box(device, plan, fleet.source.includes(device.name), places[device.name]));
  const states = {};
  for (const device of fleet.devices) states[device.state] = (states[device.state] || 0) + 1;
  const summary = Object.entries(states).map(([state, count]) => `${count} ${SIGNS[state]} ${state}`).join(", ");
  renew(card,
    h("h2", {}, "Fleet", h("small", {}, `${summary}; ▤ has the data`)),
    picture(width, height, `${fleet.devices.length} devices: ${summary}. ${fleet.links.length} links, ${fleet.media.length} shared media. The table of devices has the details.`, lines.flat(), hubs.flat(2), words.flat(), nodes),
    details(fleet));
}

function details(fleet) {
  if (!fleet.links.length) return null;
  const cell = (value) => h("td", { class: "number" }, value);
  const rows = fleet.links.map((link) => h("tr", {}, h("td", {}, link.between.join(" – ")), cell(mbps(link.up_mbps)), cell(mbps(link.down_mbps)),
    cell(known(link.up_used) ? mbps(link.up_used) : "–"), cell(known(link.down_used) ? mbps(link.down_used) : "–"), cell(seconds(link.latency_ms / 1e3)), cell(link.losses.map(percent).join(" / "))));
  const heads = ["link", "rate →", "rate ←", "in use →", "in use ←", "latency", "loss → / ←"];
  return h("details", {}, h("summary", {}, "Links as a table"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "links" },
    h("table", {}, h("thead", {}, h("tr", {}, heads.map((text, i) => h("th", { scope: "col", class: i ? "number" : null }, text)))), h("tbody", {}, rows))));
}
