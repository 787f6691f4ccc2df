// "What if": sliders for links and devices; the server plans again and says the price.

import { digits, fill, h, known, s, seconds, widthIn } from "./draw.js";
import { ganttPicture } from "./gantt.js";
import { planPicture, tiersOf } from "./plan.js";

const WAIT_MS = 350, DECADES = 1; // sliders go from a tenth to ten times
const factorOf = (input) => 10 ** (Number(input.value) / 50 * DECADES);
const words = (factor) => (Math.abs(factor - 1) < 0.01 ? "as it is" : `× ${digits(factor)}`);

/** A card whose sliders stay as they are while the run goes on. */
export class WhatIf {
  constructor(card, run) { this.card = card; this.run = run; this.shape = ""; this.asked = 0; }

  draw({ plan, fleet }) {
    this.plan = plan; this.fleet = fleet;
    const shape = JSON.stringify([plan.devices, fleet.devices.map((d) => d.name), fleet.links.map((l) => l.between)]);
    if (shape === this.shape) return;
    this.shape = shape;
    const there = fleet.devices.filter((device) => device.state !== "lost"), names = new Set(there.map((device) => device.name));
    const links = [...fleet.links.filter((link) => link.between.every((end) => names.has(end))).map((link) => [link.between.join("-"), link.between.join(" – ")]), ...fleet.media.map((m) => [m.name, m.name])];
    this.answer = h("div", { class: "answer", role: "status", "aria-live": "polite" }, h("p", { class: "quiet" }, "Move a slider to see what the plan and its price would be."));
    fill(this.card, 
      h("h2", {}, "What if …", h("small", {}, "the strategy plans again, nothing runs"), h("button", { type: "button", onclick: () => this.reset() }, "As it is")),
      h("form", { onsubmit: (event) => event.preventDefault() },
        h("fieldset", {}, h("legend", { class: "quiet" }, "Bandwidth"), h("div", { class: "sliders" }, links.length > 1 ? this.slider("rates", "", "all links") : null, links.map(([id, name]) => this.slider("rates", id, name)))),
        h("fieldset", {}, h("legend", { class: "quiet" }, "Speed of devices"), h("div", { class: "sliders" }, there.map((device) => this.slider("speeds", device.name, device.name, !fleet.source.includes(device.name)))))),
      this.answer);
  }

  slider(group, id, name, mayGo = false) {
    const output = h("output", {}, words(1));
    const input = h("input", { type: "range", min: -50, max: 50, step: 1, value: 0, "data-group": group, "data-id": id, "aria-label": `${group === "rates" ? "bandwidth of" : "speed of"} ${name}`, "aria-valuetext": words(1) });
    input.addEventListener("input", () => { output.textContent = words(factorOf(input)); input.setAttribute("aria-valuetext", words(factorOf(input))); this.soon(); });
    const gone = mayGo ? h("label", { class: "gone" }, h("input", { type: "checkbox", "data-gone": id, onchange: () => this.soon() }), `without ${name}`) : null;
    return h("div", { class: "slider" }, h("span", {}, name), output, input, gone);
  }

  reset() {
    for (const input of this.card.querySelectorAll("input")) {
      if (input.type === "range") { input.value = 0; input.dispatchEvent(new Event("input")); } else input.checked = false;
    }
  }

  soon() { clearTimeout(this.timer); this.timer = setTimeout(() => this.ask(), WAIT_MS); }

  change() {
    const change = { rates: {}, speeds: {}, gone: [] };
    const every = this.card.querySelector('input[data-group=rates][data-id=""]'), all = every ? factorOf(every) : 1;
    for (const input of this.card.querySelectorAll("input[type=range]")) {
      if (input === every) continue;
      const factor = factorOf(input) * (input.dataset.group === "rates" ? all : 1);
      if (Math.abs(factor - 1) >= 0.01) change[input.dataset.group][input.dataset.id] = Number(factor.toFixed(4));
    }
    for (const box of this.card.querySelectorAll("input[data-gone]:checked")) change.gone.push(box.dataset.gone);
    return change;
  }

  async ask() {
    const number = (this.asked += 1);
    this.answer.setAttribute("aria-busy", "true");
    if (!this.answer.querySelector(".bars")) fill(this.answer, h("p", { class: "quiet" }, "Planning …"));
    let document;
    try {
      const response = await fetch("/what-if", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ run: this.run, change: this.change() }) });
      document = await response.json();
    } catch (error) { document = { error: `the server does not answer (${error.message})` }; }
    if (number !== this.asked) return; // a newer question is under way
    this.answer.removeAttribute("aria-busy");
    this.show(document);
  }

  show(answer) {
    if (answer.error) { fill(this.answer, h("p", { class: "problem" }, answer.error)); return; }
    const rows = [["the plan as it is, today", answer.before_s, true], ["the same plan then", answer.kept_s, true, answer.kept_why_not], [`the plan that ${answer.plan.strategy} would make`, answer.plan.seconds, false]];
    const most = Math.max(...rows.map((row) => row[1] || 0)) || 1, width = widthIn(this.card);
    const bars = rows.map(([name, value, muted, why]) => [h("span", {}, name), s("svg", { viewBox: "0 0 100 14", preserveAspectRatio: "none", "aria-hidden": "true" },
      known(value) ? s("rect", { class: muted ? "bar muted" : "bar", width: (100 * value) / most, height: 14, rx: 2 }) : null), h("strong", {}, known(value) ? seconds(value) : `not possible: ${why}`)]);
    fill(this.answer, h("div", { class: "bars" }, bars.flat()), answer.note ? h("p", {}, answer.note) : null,
      planPicture(answer.plan, tiersOf(this.fleet), width), h("details", {}, h("summary", {}, "Its time"), ganttPicture([{ kind: "predicted", value: answer.predicted }], width) || ""));
  }
}
