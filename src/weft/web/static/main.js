// The page: takes what the server tells, keeps it by run and part, and draws the cards that depend on it.

import { drawCurves, drawTogether } from "./curves.js";
import { h } from "./draw.js";
import { drawFleet } from "./fleet.js";
import { drawGantt } from "./gantt.js";
import { drawDevices, drawEvents, drawRun } from "./lists.js";
import { drawMap } from "./map.js";
import { drawPlan } from "./plan.js";
import { WhatIf } from "./whatif.js";

const tiers = (fleet) => fleet.devices.map((device) => [device.name, device.tier]);
const drawn = ({ devices, ...others }) => [others, devices.map((device) => [device.name, device.tier, device.state, device.slowdown, device.in_reach])];

// Every card: its name, the parts that it needs, how it is drawn, whether it takes the whole width, and what of its
// parts is drawn where that is less: of the fleet nearly every message changes a counter that only the table shows.
const CARDS = [
  ["run", ["run"], drawRun, true],
  ["fleet", ["fleet", "plan"], drawFleet, false, ({ fleet, plan }) => [drawn(fleet), plan]],
  ["plan", ["plan", "fleet"], drawPlan, false, ({ fleet, plan }) => [tiers(fleet), plan]],
  ["map", ["map", "fleet"], drawMap, false, ({ map, fleet }) => [map, drawn(fleet)]],
  ["time", ["predicted", "measured"], drawGantt, true],
  ["curves", ["curves"], drawCurves],
  ["events", ["events"], drawEvents],
  ["devices", ["fleet", "plan"], drawDevices, true],
  ["whatif", ["plan", "fleet"], null, true],
];

const main = document.getElementById("runs"), choice = document.getElementById("choice"), empty = document.getElementById("empty");
const parts = {}; // run -> part -> value
let names = [], chosen = new Set(), touched = false;
const views = new Map(); // run -> its cards
const due = new Map(); // run -> parts that have changed since the last drawing
let drawing = false;

class View {
  constructor(name) {
    this.name = name;
    this.element = h("section", { class: "run", "aria-label": `run ${name}`, "data-run": name });
    this.cards = CARDS.map(([id, needs, draw, wide, seen]) => {
      const card = h("section", { class: `card card-${id}${wide ? " wide" : ""}`, "data-card": id, "aria-label": id });
      const whatIf = draw ? null : new WhatIf(card, name);
      this.element.append(card);
      return { card, needs, seen, before: "", draw: draw ? (values) => draw(card, values) : (values) => whatIf.draw(values) };
    });
  }

  draw(changed) {
    const values = parts[this.name] || {};
    this.element.dataset.state = values.run?.state || "unknown";
    const due = this.cards.filter(({ needs }) => needs.some((part) => changed.has(part)) && needs.every((part) => values[part]));
    for (const { card } of due) card.room = card.clientWidth;
    for (const one of due) {
      const { card, draw, seen } = one, now = seen ? JSON.stringify([card.room, seen(values)]) : null;
      if (now && now === one.before) continue;
      one.before = now;
      const focus = card.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
      const open = [...card.querySelectorAll("details")].map((element) => element.open);
      draw(values);
      card.querySelectorAll("details").forEach((element, index) => { element.open = open[index] || false; });
      if (focus) [...card.querySelectorAll("[tabindex],input,button,summary")].find((element) => element.getAttribute("aria-label") === focus)?.focus({ preventScroll: true });
    }
  }
}

function soon(run, part) {
  if (!due.has(run)) due.set(run, new Set());
  due.get(run).add(part);
  if (!drawing) { drawing = true; requestAnimationFrame(drawAll); }
}

function drawAll() {
  drawing = false;
  for (const [run, changed] of due) if (views.has(run)) views.get(run).draw(changed);
  const together = document.getElementById("together");
  if (together && [...due.values()].some((changed) => changed.has("curves"))) drawTogether(together, shown().map((name) => ({ name, parts: parts[name] || {} })));
  due.clear();
}

const shown = () => names.filter((name) => chosen.has(name));
const redraw = (name) => Object.keys(parts[name] || {}).forEach((part) => soon(name, part));

function arrange() {
  const list = shown();
  empty.hidden = list.length > 0;
  main.dataset.count = list.length;
  main.style.setProperty("--columns", Math.max(1, Math.min(list.length, 3)));
  for (const [name, view] of views) if (!list.includes(name)) { view.element.remove(); views.delete(name); }
  document.getElementById("together")?.remove();
  if (list.length > 1) main.append(h("section", { class: "card", id: "together", "aria-label": "all shown runs" }));
  for (const name of list) {
    if (!views.has(name)) views.set(name, new View(name));
    main.append(views.get(name).element);
    redraw(name);
  }
}

function setRuns(list) {
  names = list;
  for (const name of Object.keys(parts)) if (!list.includes(name)) delete parts[name];
  chosen = new Set([...chosen].filter((name) => list.includes(name)));
  if (!touched || !chosen.size) chosen = new Set(list.slice(0, 1));
  const boxes = list.map((name) => h("label", {}, h("input", { type: "checkbox", value: name, onchange: (event) => choose(name, event.target.checked) }), name));
  boxes.forEach((label, index) => { label.firstChild.checked = chosen.has(list[index]); });
  choice.replaceChildren(choice.querySelector("legend"), ...boxes);
  arrange();
}

function choose(name, wanted) {
  touched = true;
  if (wanted) chosen.add(name); else chosen.delete(name);
  arrange();
}

// --- the connection: it comes back by itself --------------------------------------------------------

const word = document.getElementById("connection");
let wait = 500;

function connect() {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/changes`);
  socket.onopen = () => { wait = 500; word.textContent = "● connected"; word.className = "works"; };
  socket.onmessage = (event) => {
    const { run, part, value } = JSON.parse(event.data);
    if (part === "runs") { setRuns(value); return; }
    (parts[run] = parts[run] || {})[part] = value;
    soon(run, part);
  };
  socket.onclose = () => {
    word.textContent = "○ not connected, trying again"; word.className = "lost";
    setTimeout(connect, wait);
    wait = Math.min(wait * 1.6, 5000);
  };
}

// --- light and dark ---------------------------------------------------------------------------------

const button = document.getElementById("theme"), system = matchMedia("(prefers-color-scheme: dark)");
let theme = new URLSearchParams(location.search).get("theme") || localStorage.getItem("weft-theme");

function dress() {
  const now = theme === "dark" || theme === "light" ? theme : system.matches ? "dark" : "light";
  document.documentElement.dataset.theme = now;
  button.textContent = now === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", now === "dark" ? "use light colours" : "use dark colours");
}

button.addEventListener("click", () => { theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; localStorage.setItem("weft-theme", theme); dress(); });
system.addEventListener("change", dress);
let width = innerWidth, resizing;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; clearTimeout(resizing); resizing = setTimeout(() => shown().forEach(redraw), 150); } });

dress();
connect();
