"""What a run's folder tells while the run goes on: `weft web` and `weft top` read it.

    events.jsonl   what happened, one line for each event, as it happens
    live.json      where the run stands: the whole fleet, each device's state, the newest minibatches' spans
    trace.json     how an emulated fleet changes, where the user gave a trace
    plan.json      is written again when the plan changes

A thread of its own writes these files, so the run never waits for them. If the disk does not take them, the
event `not_saved` says so once, and the run goes on.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec
from msgspec import Struct

from weft.errors import WeftError
from weft.fleet.fleet import Fleet
from weft.plans.plan import Plan
from weft.program.timeline import Span, Timeline
from weft.reading import read_bounded
from weft.runtime.run.measured import done_everywhere, timeline_of
from weft.runtime.run.records.record import Folder
from weft.runtime.run.records.saves import MAX_ROWS
from weft.runtime.run.run import Run
from weft.runtime.run.workload.asked import Asked

LIVE, EVENTS, TRACE = "live.json", "events.jsonl", "trace.json"
EVERY_S = 0.5  # between two looks at the run
SPANS_EVERY_S = 2.0  # between two questions to the devices
ASK_S = 2.0  # how long a device may take to answer; it is asked again later
SHARE = 50  # asking the devices takes at most a fiftieth of the time
MINIBATCHES = 8  # whose spans are shown
MOST_SPANS = 6000

State = Literal["runs", "ended", "failed"]
DeviceState = Literal["works", "idle", "silent", "lost"]


class DeviceNow(Struct, frozen=True, omit_defaults=True):
    """What is known of a device while the run goes on."""

    state: DeviceState
    done: int = -1  # the newest minibatch
    cpu_s: float | None = None  # CPU time of its process since the first minibatch
    cpu_share: float | None = None  # of one core, between the last two reports
    counts: dict[str, int] = {}  # messages, packets and losses, where the device counts them


class LiveFile(Struct, frozen=True, omit_defaults=True):
    """Where a run stands. The file is replaced about twice a second; its age tells whether the run lives."""

    state: State
    steps: int  # that were asked for
    fleet: Fleet  # the whole fleet, whoever is there
    devices: dict[str, DeviceNow]
    at_s: float  # since the run began, like the events' `at_s`
    strategy: str
    first: int = 0  # the minibatch that this run began with
    options: dict[str, str] = {}  # of the strategy
    why: str = ""  # why a run failed
    trace_s: float | None = None  # since the emulated fleet began to change
    recent: Timeline | None = None  # the newest minibatches, on one clock


class Live:
    """Keeps the folder of a run up to date. Without a folder it does nothing."""

    def __init__(self, folder: Folder | None) -> None:
        self.folder = folder
        self._run: Run | None = None
        self._stop = threading.Event()
        self._written = 0  # events in the folder
        self._plan: Plan | None = None  # in the folder
        self._failing = False
        self._recent: Timeline | None = None
        self._cpu: dict[str, tuple[float, float]] = {}  # when, and the CPU time until then
        self._share: dict[str, float] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._next_ask = 0.0

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._run is not None:
            why = str(error) or kind.__name__ if kind is not None else ""
            self._write(self._run, "failed" if kind is not None else "ended", why)

    @contextlib.contextmanager
    def follow(self, run: Run, first: int, asked: Asked) -> Iterator[None]:
        """Writes what the run does, until it leaves this block."""
        if self.folder is None:
            yield
            return
        self._run, self._first, self._asked, self._plan = run, first, asked, run.plan
        self._begin(self.folder, first)
        thread = threading.Thread(target=self._watch, args=(run,), name="live", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(ASK_S + 1)

    def _begin(self, folder: Folder, first: int) -> None:
        """A new run in an old folder begins its own list of events; a resumed one keeps the earlier ones."""
        with contextlib.suppress(OSError):
            path = folder.path / EVENTS
            rows = earlier_events(folder.path, first)
            path.write_bytes(b"".join(row + b"\n" for row in rows))
            (folder.path / TRACE).unlink(missing_ok=True)
            assert self._run is not None
            if self._run.settings.trace is not None:
                folder.write(TRACE, msgspec.json.encode(self._run.settings.trace))

    def _watch(self, run: Run) -> None:
        while not self._stop.is_set():
            if time.monotonic() >= self._next_ask:
                self._ask(run)
            if not self._stop.is_set():
                self._write(run, "runs")
            self._stop.wait(EVERY_S)

    # --- what the devices say -------------------------------------------------------------------

    def _ask(self, run: Run) -> None:
        """The newest minibatches' spans, and counters. Who does not answer soon is asked again later."""
        begin = time.monotonic()
        done = dict(run.outcome.done)
        newest = min((done[d] for d in run.working if d in done), default=-1)
        if newest >= 0:
            try:
                self._take(run, newest - MINIBATCHES + 1)
            except WeftError:  # a plan that changes, a device that dies
                pass
            except Exception as error:  # what is shown must never end what is watched
                if not self._stop.is_set():
                    run.note(newest + 1, "report_unreadable", f"for {LIVE}: {error!r}")
                    self._next_ask = math.inf
                    return
        took = time.monotonic() - begin
        self._next_ask = begin + max(SPANS_EVERY_S, SHARE * took)

    def _take(self, run: Run, since: int) -> None:
        spans, reported = run.spans(tuple(run.devices), max(0, since), ASK_S)
        now = time.monotonic()
        for device, counted in reported.items():
            at, cpu = self._cpu.get(device, (now, counted.total_cpu_s))
            if now > at and counted.total_cpu_s >= cpu:
                self._share[device] = (counted.total_cpu_s - cpu) / (now - at)
            self._cpu[device] = now, counted.total_cpu_s
            self._counts[device] = dict(counted.counts)
        last = done_everywhere(spans)
        shown: list[Span] = [span for span in spans if last < 0 or span.step <= last]
        self._recent = timeline_of(shown[:MOST_SPANS], run.program.beat, None)

    # --- the files ------------------------------------------------------------------------------

    def _write(self, run: Run, state: State, why: str = "") -> None:
        assert self.folder is not None
        folder, events = self.folder, list(run.events)
        try:
            if run.plan is not self._plan and state == "runs":
                folder.save_plan(run.plan)
                self._plan = run.plan
            if len(events) > self._written:
                with (folder.path / EVENTS).open("ab") as file:
                    file.write(
                        b"".join(msgspec.json.encode(e) + b"\n" for e in events[self._written :])
                    )
                self._written = len(events)
            beside = folder.path / f".{LIVE}.new"
            beside.write_bytes(msgspec.json.encode(self._now(run, state, why)))
            os.replace(beside, folder.path / LIVE)
            self._failing = False
        except OSError as error:
            if not self._failing:
                self._failing = True
                run.note(min(run.outcome.done.values(), default=-1) + 1, "not_saved",
                         f"{LIVE} not written to {folder.path}: {error}", what="live")  # fmt: skip

    def _now(self, run: Run, state: State, why: str) -> LiveFile:
        start = run.settings.trace_start
        trace_s = time.monotonic() - start if math.isfinite(start) else None
        return LiveFile(
            state, self._asked.steps, run.fleet, self._devices(run, state),
            round(time.monotonic() - run.begun_s, 3), self._asked.strategy, self._first,
            {key: str(value) for key, value in self._asked.options.items()}, why, trace_s,
            self._recent,
        )  # fmt: skip

    def _devices(self, run: Run, state: State) -> dict[str, DeviceNow]:
        present, silent = set(run.crew.present), set(run.crew.silent)
        done, at_work = dict(run.outcome.done), set(run.plan.devices)
        devices = {}
        for name in dict.fromkeys((*run.fleet.names, *run.devices)):
            there = name in present and name not in run.absent
            now: DeviceState = "works" if name in at_work else "idle"
            if state == "runs" and not there:
                now = "silent" if name in silent else "lost"
            elif name in run.absent:
                now = "lost"
            cpu = self._cpu.get(name)
            devices[name] = DeviceNow(
                now, done.get(name, -1), cpu[1] if cpu else None, self._share.get(name),
                self._counts.get(name, {}),
            )  # fmt: skip
        return devices


def earlier_events(path: Path, first: int) -> list[bytes]:
    """The events of a folder from before minibatch `first`."""
    file = path / EVENTS
    if not first or not file.exists():
        return []
    rows = read_bounded(file, MAX_ROWS, "file").splitlines()
    return [row for row in rows if _is_before(row, first)]


def _is_before(row: bytes, first: int) -> bool:
    try:
        return int(msgspec.json.decode(row)["step"]) <= first
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return False
