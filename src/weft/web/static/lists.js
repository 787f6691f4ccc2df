// What is best read: where the run stands, its events, its devices.

import { bytes, clock, digits, fill, h, known, mbps, percent, renew, seconds } from "./draw.js";
import { holding } from "./fleet.js";

const SIGNS = { runs: "▶ runs", ended: "■ ended", failed: "✕ failed", silent: "◐ no word", unknown: "? unknown" };
const EVENTS = { device_lost: "✕ device lost", recovered: "✓ recovered", device_joined: "＋ device joined", replanned: "↻ re-planned", worker_changed: "⇄ worker changed",
  device_silent: "◐ device silent", device_back: "✓ device back", coordinator_elected: "★ coordinator elected", stopped: "■ stopped", not_saved: "! not saved", trains_alone: "1 trains alone" };

export function drawRun(card, { run }) {
  const figure = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  const planned = run.planned_by && run.planned_by !== run.strategy ? ` (now ${run.planned_by})` : "";
  renew(card,
    h("h2", {}, run.name, h("small", {}, run.model ? `${run.model}, ${run.strategy}${planned}, batch ${run.batch}` : "")),
    h("dl", { class: "figures" },
      h("div", {}, h("dt", {}, "state"), h("dd", { class: `state ${run.state}` }, SIGNS[run.state] || run.state)),
      run.model ? [figure("minibatches", `${run.done}${run.steps ? ` of ${run.steps}` : ""}`), figure("loss", known(run.loss) ? digits(run.loss) : "–"),
        figure("a minibatch, measured", seconds(run.step_s)), figure("predicted", seconds(run.predicted_s)),
        known(run.step_s) && run.predicted_s ? figure("measured ÷ predicted", digits(run.step_s / run.predicted_s)) : null, figure("time", clock(run.at_s))] : null),
    run.steps ? h("progress", { max: run.steps, value: Math.min(run.done, run.steps), "aria-label": `${run.done} of ${run.steps} minibatches` }) : null,
    run.state === "silent" ? h("p", { class: "problem" }, "The run has written nothing for some time. Its process has probably ended.") : null,
    run.why ? h("p", { class: "problem" }, run.why) : null,
    (run.problems || []).map((words) => h("p", { class: "problem" }, words)));
}

export function drawEvents(card, { events }) {
  const rows = [...events.rows].reverse().map((event) => {
    const extra = ["device", "repeated", "moved_bytes", "seconds"].filter((name) => known(event[name]) && name !== "device")
      .map((name) => (name === "moved_bytes" ? `${bytes(event[name])} moved` : name === "seconds" ? `in ${seconds(event[name])}` : `${event[name]} minibatch${event[name] === 1 ? "" : "es"} repeated`));
    return h("li", { "data-kind": event.kind }, h("span", { class: "when" }, `${clock(event.at_s)}, step ${event.step}`),
      h("p", {}, h("strong", { class: event.kind }, EVENTS[event.kind] || event.kind.replaceAll("_", " ")), known(event.device) ? ` ${event.device}` : "", event.why ? `: ${event.why}` : "", extra.length ? ` (${extra.join(", ")})` : ""));
  });
  const old = card.querySelector("ol");
  const list = h("ol", { class: "events", role: "log", "aria-label": "events, the newest first", tabindex: 0 }, rows.length ? rows : h("li", {}, h("span", { class: "quiet only" }, "Nothing out of the ordinary.")));
  const top = old ? old.scrollTop : 0;
  fill(card, h("h2", {}, "Events", h("small", {}, rows.length ? `${rows.length}, the newest first` : "")), list);
  list.scrollTop = top;
}

function traffic(fleet, name) {
  let sent = null, got = null;
  const add = (total, value) => (known(value) ? (total || 0) + value : total);
  for (const link of fleet.links) {
    if (link.between[0] === name) { sent = add(sent, link.up_used); got = add(got, link.down_used); }
    if (link.between[1] === name) { sent = add(sent, link.down_used); got = add(got, link.up_used); }
  }
  return [sent, got];
}

export function drawDevices(card, { fleet, plan }) {
  const heads = ["device", "tier", "state", "holds", "minibatches", "CPU", "computes", "memory", "sends", "receives"];
  const slow = fleet.devices.some((device) => known(device.slowdown)), lossy = fleet.devices.some((device) => device.counts.packets);
  if (slow) heads.push("slower by");
  if (lossy) heads.push("packets lost");
  const number = (value) => h("td", { class: "number" }, value);
  const rows = fleet.devices.map((device) => {
    const [sent, got] = traffic(fleet, device.name), lost = device.counts.packets ? (device.counts.packets_lost || 0) / device.counts.packets : null;
    return h("tr", { "data-device": device.name }, h("th", { scope: "row" }, device.name), h("td", {}, device.tier),
      h("td", { class: `state ${device.state}` }, device.in_reach === false ? `${device.state}, out of reach` : device.state), h("td", {}, holding(plan, device.name)),
      number(known(device.done) ? String(device.done) : "–"), number(percent(device.cpu_share)), number(seconds(device.compute_s)),
      number(bytes(device.memory_bytes) + (device.memory_mb ? ` of ${bytes(device.memory_mb * 1e6)}` : "")), number(mbps(sent)), number(mbps(got)),
      slow ? number(known(device.slowdown) ? `${digits(device.slowdown)}×` : "–") : null, lossy ? number(percent(lost)) : null);
  });
  renew(card, h("h2", {}, "Devices", h("small", {}, "CPU: share of one core, measured; computes: predicted for a minibatch; memory: predicted; sends, receives: measured")),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "devices" }, h("table", {},
      h("thead", {}, h("tr", {}, heads.map((text, index) => h("th", { scope: "col", class: index > 3 ? "number" : null }, text)))), h("tbody", {}, rows))));
}
