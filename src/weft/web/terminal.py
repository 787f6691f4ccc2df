"""The parts of a run as tables in a terminal: `weft top`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from weft.errors import printable
from weft.report.words import digits, seconds, size
from weft.web.folder import RunFolder, runs_in

REFRESH_S = 1.0
STATES = {
    "runs": "bold green", "works": "green", "ended": "dim", "idle": "dim", "failed": "bold red",
    "lost": "bold red", "silent": "bold yellow", "unknown": "yellow",
}  # fmt: skip
LEVELS = "▁▂▃▄▅▆▇█"
EVENTS = 6  # the newest ones


def screen(runs: Iterable[RunFolder], width: int = 100) -> RenderableType:
    """All runs, one panel each."""
    panels = [panel(run.parts, width) for run in runs]
    return Group(*panels) if panels else Text("no run yet: `weft train ... --out DIR` makes one")


def panel(parts: dict[str, dict[str, Any]], width: int = 100) -> RenderableType:
    """One run: where it stands, its curve, its devices and its newest events."""
    run = parts["run"]
    pieces: list[RenderableType] = [_head(run)]
    if "fleet" in parts:
        losses = [loss for loss in parts["curves"]["loss"] if loss is not None]
        if losses:
            pieces.append(Text(f"loss {sparkline(losses, max(10, width - 24))} {losses[-1]:.4g}"))
        for name, rows in parts["curves"]["tests"].items():
            pieces.append(plain(f"test {name} {rows[-1][1]:.4g} (minibatch {rows[-1][0]})"))
        pieces += [device_table(parts), link_table(parts)]
        if parts["events"]["rows"]:
            pieces.append(event_table(parts))
    pieces += [plain(words, "red") for words in (run.get("why"), *run["problems"]) if words]
    return Panel(Group(*pieces), title=plain(run["name"]), title_align="left")


def plain(words: object, style: str = "") -> Text:
    """Words from a folder's files as they are: no markup, and nothing that the terminal obeys."""
    return Text(printable(words), style=style)


def _head(run: dict[str, Any]) -> Text:
    text = plain(run["state"], STATES.get(run["state"], ""))
    if "model" in run:
        of = f" of {run['steps']}" if run["steps"] else ""
        measured = seconds(run["step_s"]) if run["step_s"] else "–"
        predicted = seconds(run["predicted_s"]) if run["predicted_s"] else "–"
        text.append(
            printable(
                f"  {run['model']}, {run['strategy']}, batch {run['batch']}   "
                f"{run['done']}{of} minibatches   {measured} each, {predicted} predicted"
            ),
            style="default",
        )
    return text


def sparkline(values: list[float], width: int) -> str:
    """A curve in one line of text."""
    step = max(1.0, len(values) / width)
    picked = [values[int(i * step)] for i in range(min(width, len(values)))]
    low, high = min(picked), max(picked)
    top = len(LEVELS) - 1
    return "".join(
        LEVELS[round((v - low) / (high - low) * top) if high > low else 0] for v in picked
    )


def device_table(parts: dict[str, dict[str, Any]]) -> Table:
    """A row for each device: its state, what it holds, and how busy it is."""
    table = _table("device", "tier", "state", "holds", "done", "CPU", "memory")
    shards = parts["plan"]["shards"]
    for device in parts["fleet"]["devices"]:
        holds = [_held(s) for s in shards if s["device"] == device["name"]]
        standby = any(s["device"] == device["name"] for s in parts["plan"]["standby"])
        held = holds[0] if holds else "stands by" if standby else "–"
        held += f" and {len(holds) - 1} more" if len(holds) > 1 else ""
        share, memory = device["cpu_share"], device["memory_bytes"]
        table.add_row(
            plain(device["name"]), plain(device["tier"]),
            plain(device["state"], STATES.get(device["state"], "")), plain(held),
            "–" if device["done"] is None else str(device["done"]),
            "–" if share is None else f"{share:.0%}", "–" if memory is None else size(memory),
        )  # fmt: skip
    return table


def link_table(parts: dict[str, dict[str, Any]]) -> Table:
    """A row for each link and shared medium: its rates, and how much of them is in use."""
    table = _table("link", "rate Mbps", "in use Mbps", "latency", "loss")
    for link in parts["fleet"]["links"]:
        table.add_row(
            plain(" – ".join(link["between"])), f"{digits(link['up_mbps'])} / {digits(link['down_mbps'])}",
            f"{_rate(link['up_used'])} / {_rate(link['down_used'])}",
            f"{link['latency_ms']:g} ms", f"{max(link['losses']):.1%}",
        )  # fmt: skip
    for medium in parts["fleet"]["media"]:
        table.add_row(plain(medium["name"]), digits(medium["mbps"]), _rate(medium["used"]),
                      f"{medium['latency_ms']:g} ms", f"{medium['loss']:.1%}")  # fmt: skip
    return table


def event_table(parts: dict[str, dict[str, Any]]) -> Table:
    """The newest events, the newest one first."""
    table = _table("at", "step", "event", "why")
    for event in parts["events"]["rows"][: -EVENTS - 1 : -1]:
        at = event.get("at_s")
        kind = f"{event.get('kind', '')} {event.get('device', '')}".strip()
        when = f"{at:.1f} s" if isinstance(at, int | float) else "–"
        step, why = event.get("step", "–"), event.get("why", "")
        table.add_row(when, plain(step), plain(kind), plain(why))
    return table


def _held(shard: dict[str, Any]) -> str:
    """What a device holds, in words: `layers 0-3, all 64 samples`."""
    first, last = shard["layers"]
    return f"{f'layer {first}' if first == last else f'layers {first}-{last}'}, {shard['part']}"


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _rate(value: float | None) -> str:
    return "–" if value is None else digits(value)


def watch(folder: Path, once: bool = False, console: Console | None = None) -> None:
    """Shows the runs of a folder until Ctrl-C; or once."""
    console = console or Console()
    runs: dict[str, RunFolder] = {}

    def look() -> RenderableType:
        for name, path in runs_in(folder).items():
            runs.setdefault(name, RunFolder(name, path)).read()
        return screen(runs.values(), console.width)

    if once:
        console.print(look())
        return
    with Live(look(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_S)
            live.update(look(), refresh=True)
