"""A run's folder as parts, each a plain document for the page and the terminal.

    run = RunFolder("first", Path("runs/first"))
    run.read()                       # the names of the parts that have changed
    run.parts["fleet"]["devices"]    # the newest

Files are read again only if they have changed, and never if they are too large. A file that cannot be read
is a sentence in `run.parts["run"]["problems"]`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Fleet
from weft.fleet.trace import Trace
from weft.planning.decide import load_plan
from weft.plans.plan import Plan
from weft.program.timeline import Timeline
from weft.runtime.run.records.live import EVENTS as EVENTS_FILE
from weft.runtime.run.records.live import LIVE, TRACE, LiveFile
from weft.runtime.run.records.saves import RUN_FILE, RunFile
from weft.web.gantt import gantt, rates
from weft.web.lines import Curves, Events
from weft.web.planned import plan_part, predicted_part

Part = dict[str, Any]
T = TypeVar("T")
PLAN, TIMELINE, METRICS = "plan.json", "timeline.json", "metrics.jsonl"
MOST_BYTES = {PLAN: 64 << 20, TIMELINE: 96 << 20, LIVE: 16 << 20, TRACE: 8 << 20, RUN_FILE: 1 << 20}
MOST_RUNS = 24
TRAIL = 500  # positions that are shown
SILENT_S = 8.0  # a run that goes on writes twice a second; past this its process is probably gone


def runs_in(folder: Path) -> dict[str, Path]:
    """The run folders: the folder itself, or those in it, the newest first."""
    if (folder / PLAN).is_file():
        return {folder.resolve().name: folder}
    try:
        inside = [p for p in folder.iterdir() if (p / PLAN).is_file()]
    except OSError:
        return {}
    inside.sort(key=lambda p: _changed(p / METRICS) or _changed(p / PLAN), reverse=True)
    return {p.name: p for p in inside[:MOST_RUNS]}


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class RunFolder:
    """One run. `read` looks at its files again; `parts` are the newest documents."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.parts: dict[str, Part] = {}
        self.plan: Plan | None = None
        self.live: LiveFile | None = None
        self._stamps: dict[str, tuple[int, int]] = {}
        self._problems: dict[str, str] = {}
        self._curves, self._events = Curves(path / METRICS), Events(path / EVENTS_FILE)
        self._timeline: Timeline | None = None
        self._shown: Timeline | None = None  # what `_measured` and `_crossed` were made from
        self._measured: Part = {}
        self._crossed: dict[str, float] = {}
        self._planned: Part = {}
        self._predicted: Part = {}
        self._trace: Trace | None = None
        self._saved: RunFile | None = None

    def read(self) -> set[str]:
        """Reads what has changed. Returns the names of the parts that differ from before."""
        self._read_files()
        if self.plan is None:
            return self._set({"run": {"name": self.name, "state": "unknown", **self._words()}})
        parts: dict[str, Part] = {}
        if self._curves.read() or "curves" not in self.parts:
            parts["curves"] = self._curves.document()
        if self._events.read() or "events" not in self.parts:
            parts["events"] = {"rows": list(self._events.rows)}
        self._measure(self._newest_timeline())
        parts["measured"], parts["predicted"] = self._measured, self._predicted
        parts["plan"] = self._planned
        parts["fleet"] = self._fleet()
        parts["map"] = self._map()
        parts["run"] = self._run()
        return self._set(parts)

    def _set(self, parts: dict[str, Part]) -> set[str]:
        changed = {name for name, part in parts.items() if self.parts.get(name) != part}
        self.parts.update(parts)
        return changed

    # --- files ----------------------------------------------------------------------------------

    def _read_files(self) -> None:
        if self._new(PLAN):
            plan = self._load(PLAN, lambda path: load_plan(path))
            if plan is not None:
                self.plan, self._planned = plan, plan_part(plan)
                self._predicted = self._load(PLAN, lambda _: predicted_part(plan)) or {}
        if self._new(LIVE):
            self.live = self._load(LIVE, _decoded(LiveFile)) or self.live
        if self._new(TIMELINE):
            self._timeline = self._load(TIMELINE, _decoded(Timeline))
        if self._new(RUN_FILE):
            self._saved = self._load(RUN_FILE, _decoded(RunFile))
        if self._new(TRACE):
            self._trace = self._load(TRACE, _decoded(Trace))

    def _new(self, name: str) -> bool:
        """Whether the file is another than at the last look."""
        try:
            status = (self.path / name).stat()
        except OSError:
            self._problems.pop(name, None)
            return False
        stamp = status.st_mtime_ns, status.st_size
        if self._stamps.get(name) == stamp:
            return False
        self._stamps[name] = stamp
        if status.st_size > MOST_BYTES[name]:
            self._problems[name] = (
                f"{name} has {status.st_size / 1e6:.0f} MB; "
                f"files above {MOST_BYTES[name] / 1e6:.0f} MB are not shown"
            )
            return False
        return True

    def _load(self, name: str, read: Callable[[Path], T]) -> T | None:
        try:
            value = read(self.path / name)
        except (OSError, msgspec.MsgspecError, WeftError) as error:
            self._problems[name] = f"{name} cannot be shown: {error}"
            return None
        except Exception as error:  # a folder may come from anybody; the others are still shown
            self._problems[name] = f"{name} cannot be shown: {type(error).__name__}: {error}"
            return None
        self._problems.pop(name, None)
        return value

    def _newest_timeline(self) -> Timeline | None:
        """That of the whole run when it has ended; until then the newest minibatches."""
        recent = self.live.recent if self.live else None
        if self.live is not None and self.live.state == "runs":
            return recent
        return self._timeline or recent

    def _measure(self, timeline: Timeline | None) -> None:
        if timeline is not self._shown:
            self._shown = timeline
            self._measured = gantt(timeline) if timeline else {}
            self._crossed = rates(timeline) if timeline else {}

    # --- parts ----------------------------------------------------------------------------------

    def _words(self) -> Part:
        return {"problems": sorted(self._problems.values())}

    def _run(self) -> Part:
        plan, live = self.plan, self.live
        assert plan is not None
        steps = live.steps if live else self._saved.steps if self._saved else None
        return {
            "name": self.name,
            "state": self.state(),
            "why": live.why if live else "",
            "model": plan.model,
            "strategy": live.strategy if live else plan.strategy,
            "planned_by": plan.strategy,
            "batch": plan.batch,
            "steps": steps,
            "done": self._curves.done,
            "loss": self._curves.loss,
            "at_s": live.at_s if live else None,
            "step_s": self._measured.get("step_s"),
            "predicted_s": plan.predicted.seconds if plan.predicted else None,
            **self._words(),
        }

    def state(self) -> str:
        """runs, ended, failed, silent (its process is probably gone), or unknown."""
        if self.live is None:
            return "ended" if self._saved is not None and self._timeline is not None else "unknown"
        if self.live.state == "runs" and time.time() - _changed(self.path / LIVE) > SILENT_S:
            return "silent"
        return self.live.state

    def event_counts(self) -> dict[str, int]:
        """How many events of each kind there were."""
        return dict(self._events.counts)

    def whole_fleet(self) -> Fleet:
        """The fleet with its lost devices, and its links as they are now."""
        assert self.plan is not None
        fleet = self.live.fleet if self.live else self.plan.fleet
        now = self.live.trace_s if self.live else None
        return fleet if self._trace is None or now is None else self._trace.fleet(fleet, now)

    def _fleet(self) -> Part:
        assert self.plan is not None
        plan, fleet, crossed = self.plan, self.whole_fleet(), self._crossed
        return {
            "devices": [self._device(device.name, fleet) for device in fleet.devices],
            "links": [
                {
                    "between": list(link.between), "up_mbps": link.up_mbps, "down_mbps": link.down_mbps,
                    "latency_ms": link.latency_ms, "losses": list(link.losses),
                    "up_used": _mbps(crossed.get(">".join(link.between))),
                    "down_used": _mbps(crossed.get(">".join(reversed(link.between)))),
                }
                for link in fleet.link
            ],
            "media": [
                {
                    "name": m.name, "gateway": m.gateway, "members": list(m.members), "mbps": m.mbps,
                    "latency_ms": m.latency_ms, "loss": m.loss, "used": _mbps(crossed.get(m.name)),
                }
                for m in fleet.medium
            ],
            "source": list(plan.sources),
        }  # fmt: skip

    def _device(self, name: str, fleet: Fleet) -> Part:
        assert self.plan is not None
        plan, device = self.plan, fleet.device(name)
        now = self.live.devices.get(name) if self.live else None
        state = now.state if now else "works" if name in plan.devices else "idle"
        trace_s = self.live.trace_s if self.live else None
        predicted = plan.predicted
        document: Part = {
            "name": name, "tier": device.tier, "gflops": device.gflops,
            "memory_mb": device.memory_mb, "state": state, "done": now.done + 1 if now else None,
            "cpu_share": now.cpu_share if now else None,
            "counts": dict(now.counts) if now else {},
            "memory_bytes": predicted.memory_bytes.get(name) if predicted else None,
            "compute_s": predicted.compute_s.get(name) if predicted else None,
        }  # fmt: skip
        if self._trace is not None and trace_s is not None:
            document["slowdown"] = self._trace.slowdown(name, trace_s)
            document["in_reach"] = self._trace.in_reach(name, trace_s)
        return document

    def _map(self) -> Part:
        """Where devices are, where the trace says it. `moves` is the one that goes furthest."""
        if self._trace is None or self.live is None or self.live.trace_s is None:
            return {}
        now = self.live.trace_s
        paths = {name: self._trace.path(name, now) for name in self.live.fleet.names}
        paths = {name: path for name, path in paths.items() if path}
        if not paths:
            return {}
        moves = max(paths, key=lambda name: len(set(paths[name])))
        return {
            "places": {name: path[-1] for name, path in paths.items()},
            "moves": moves,
            "trail": paths[moves][-TRAIL:],
        }


def _decoded(kind: type[T]) -> Callable[[Path], T]:
    return lambda path: msgspec.json.decode(path.read_bytes(), type=kind)


def _mbps(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else round(bytes_per_s * 8e-6, 3)


def open_folder(folder: Path) -> Path:
    """The folder that is to be shown; InputError if it is none."""
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder; give the folder of a run (`weft train --out`), or one with several"
        )
    return folder
