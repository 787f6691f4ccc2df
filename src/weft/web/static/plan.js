// Which device holds what: devices as rows, layers as columns.

import { fill, h, picture, s, seconds, widthIn } from "./draw.js";

const MANY_LAYERS = 24, MANY_ROWS = 40;

export function planPicture(plan, tiers, width) {
  const left = 92, top = plan.layers.length <= MANY_LAYERS ? 62 : 24, row = 34;
  const devices = plan.devices.slice(0, MANY_ROWS), column = (width - left - 6) / Math.max(1, plan.layers.length);
  const height = top + devices.length * row + 4, parts = [];
  plan.layers.forEach((name, index) => {
    const x = left + (index + 0.5) * column;
    parts.push(s("line", { class: "grid", x1: x - column / 2, x2: x - column / 2, y1: top, y2: height - 4 }));
    if (plan.layers.length <= MANY_LAYERS) {
      const short = name.length > 10 ? `${name.slice(0, 9)}…` : name;
      parts.push(s("text", { class: "small", transform: `translate(${x + 3} ${top - 6}) rotate(-50)` }, short));
    } else if (index % Math.ceil(plan.layers.length / 20) === 0) parts.push(s("text", { class: "small", x, y: top - 6, "text-anchor": "middle" }, index));
  });
  devices.forEach((name, index) => {
    const y = top + index * row;
    parts.push(s("text", { x: left - 8, y: y + row / 2 + 4, "text-anchor": "end" }, name.length > 11 ? `${name.slice(0, 10)}…` : name));
    const block = (shard, standby) => {
      const x = left + shard.layers[0] * column, wide = (shard.layers[1] - shard.layers[0] + 1) * column;
      const layers = shard.layers[0] === shard.layers[1] ? `layer ${shard.layers[0]}` : `layers ${shard.layers[0]}–${shard.layers[1]}`;
      const words = standby ? "stands by" : shard.part, fits = Math.floor((wide - 8) / 6.3);
      parts.push(s("g", {}, s("title", {}, `${name}: ${layers}, ${words}`),
        s("rect", { class: `block ${tiers[name] || "device"}${standby ? " standby" : ""}`, x: x + 1, y: y + 3, width: Math.max(2, wide - 2), height: row - 6, rx: 6 }),
        fits >= 4 ? s("text", { x: x + wide / 2, y: y + row / 2 + 4, "text-anchor": "middle" }, words.length > fits ? `${words.slice(0, fits - 1)}…` : words) : null));
    };
    plan.shards.filter((shard) => shard.device === name).forEach((shard) => block(shard, false));
    plan.standby.filter((shard) => shard.device === name).forEach((shard) => block(shard, true));
  });
  const label = plan.shards.slice(0, 30).map((shard) => `${shard.device}: layers ${shard.layers[0]} to ${shard.layers[1]}, ${shard.part}`).join("; ");
  return picture(width, height, `Which device holds what. ${label}`, parts);
}

export const tiersOf = (fleet) => Object.fromEntries(fleet.devices.map((device) => [device.name, device.tier]));

function shardTable(plan) {
  const rows = plan.shards.map((shard) => h("tr", {}, h("td", {}, shard.device), h("td", {}, `${shard.layers[0]}–${shard.layers[1]}`),
    h("td", {}, plan.layers.slice(shard.layers[0], shard.layers[1] + 1).join(", ").slice(0, 120)), h("td", {}, shard.part)));
  return h("details", {}, h("summary", {}, "As a table"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "shards" }, h("table", {},
    h("thead", {}, h("tr", {}, ["device", "layers", "names", "part"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows))));
}

export function drawPlan(card, { plan, fleet }) {
  const width = widthIn(card);
  const facts = [`${plan.strategy}: ${seconds(plan.seconds)} for a ${plan.per} predicted`, plan.micro_batches > 1 ? `${plan.micro_batches} pieces` : null,
    plan.in_flight > 1 ? `${plan.in_flight} in flight` : null, plan.codec !== "none" ? `codec ${plan.codec}` : null, plan.version ? `plan number ${plan.version + 1} of this run` : null];
  fill(card, h("h2", {}, "Who holds what", h("small", {}, facts.filter(Boolean).join(", "))), planPicture(plan, tiersOf(fleet), width), shardTable(plan));
}
