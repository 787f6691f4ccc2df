"""Makes a script of faults happen to a run, and times how the run gets over them.

    with Injector(script, machines) as injector:
        injector.watch(run)
        run.steps(0, 100)
    injector.injected        # what happened when, to whom, and after how long the run went on

With a `folder`, the list is also written there before the process of the run itself is killed.

`machines` are the processes of the fleet: an emulated fleet, or a test's own nodes. The injector looks at
the run every few milliseconds from a thread of its own. So a fault can also come while the run recovers.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from weft.fleet.faults import ANY, COORDINATOR, LOST, During, Fault, Faults, Kind
from weft.fleet.routes import direct_hops
from weft.runtime.run.run import Run
from weft.runtime.wire.closing import Closing

CAME = "faults.json"  # the faults that came before the process of the run was killed
LOOK_S = 0.005
END_S = 10.0  # for the injector's thread to end: a node that is started again takes its time


class Machines(Protocol):
    """The processes that a script of faults is carried out on."""

    def kill(self, name: str) -> None: ...
    def restart(self, name: str) -> None: ...
    def silence(self, name: str) -> None: ...
    def wake(self, name: str) -> None: ...
    def cut(self, one: str, other: str, until: float) -> None: ...
    def slow(self, name: str, times: float) -> None: ...


class Injected(Struct, frozen=True, omit_defaults=True):
    """A fault that came."""

    kind: Kind
    device: str
    step: int  # the newest minibatch that a device had done
    at_s: float  # since the run began
    had_part: bool = False  # whether the device had a part in the plan
    other: str = ""
    during: During | None = None
    recovered_s: float | None = None  # until a minibatch was done that had not been done before


class Injector(Closing):
    """Carries out one script on one run."""

    def __init__(self, script: Faults, machines: Machines, folder: Path | None = None) -> None:
        self.injected: list[Injected] = []
        self._folder = folder
        self._machines = machines
        self._pending = list(script.fault)
        self._random = random.Random(script.seed)
        self._reached: dict[Fault, float] = {}  # when the minibatch or the phase of a fault came
        self._ends: list[tuple[float, Fault, str]] = []  # faults that are over at some time
        self._killed: dict[str, float] = {}  # devices that are not back, and when they were killed
        self._open: dict[int, _Open] = {}  # by place in `injected`: not yet recovered from
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def left(self) -> tuple[Fault, ...]:
        """The faults that have not come."""
        return tuple(self._pending)

    def watch(self, run: Run) -> None:
        """Faults come from now on."""
        self._thread = threading.Thread(target=self._work, args=(run,), name="faults", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No fault comes any more, and all that would end by itself is over now."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=END_S)
        for _, fault, device in self._ends:
            self._end(fault, device)
        self._ends = []

    def _work(self, run: Run) -> None:
        while not self._over.wait(LOOK_S):
            now = time.monotonic()
            self._see_recovery(run, now)
            for end in [e for e in self._ends if e[0] <= now]:
                self._ends.remove(end)
                self._end(end[1], end[2])
            for fault in [f for f in self._pending if self._is_due(run, f, now)]:
                if (device := self._choose(run, fault)) is not None:
                    self._pending.remove(fault)
                    self._inject(run, fault, device)

    # --- when -----------------------------------------------------------------------------------

    def _is_due(self, run: Run, fault: Fault, now: float) -> bool:
        if fault.kind == Kind.restart:
            device = self._lost(fault)
            if device is None or now < self._killed[device] + fault.after_s:
                return False
            return fault.step is None or _newest(run) >= fault.step
        if fault not in self._reached:
            if fault.during is not None and run.phase != fault.during:
                return False
            if fault.step is not None and _newest(run) < fault.step:
                return False
            self._reached[fault] = now
        return now >= self._reached[fault] + fault.after_s

    def _lost(self, fault: Fault) -> str | None:
        """The device that a restart brings back, if it is killed."""
        if fault.device == LOST:
            return max(self._killed, key=self._killed.__getitem__, default=None)
        return fault.device if fault.device in self._killed else None

    # --- who ------------------------------------------------------------------------------------

    def _choose(self, run: Run, fault: Fault) -> str | None:
        """The device; None where there is none at this moment, and the fault has to wait."""
        if fault.kind == Kind.restart:
            return self._lost(fault)
        if fault.device != ANY:
            return fault.device
        if fault.kind == Kind.cut:
            ends = self._links(run)
            return self._random.choice(ends)[0] if ends else None
        there = [d for d in run.crew.present if d not in self._killed]
        parts = [d for d in run.working if d in there and d not in run.absent]
        if run.recovery.goes_back:  # without the data nobody can go on
            parts = [d for d in parts if d not in run.plan.sources]
            spare = [d for d in there if d in run.fleet.names and d not in run.plan.sources]
            candidates = parts or spare
        else:
            candidates = parts if len(parts) > 2 else []
        return self._random.choice(sorted(candidates)) if candidates else None

    def _links(self, run: Run) -> list[tuple[str, str]]:
        hops = direct_hops(run.plan.fleet)
        return sorted((h.source, h.dest) for h in hops if {h.source, h.dest} <= {*run.devices})

    # --- what -----------------------------------------------------------------------------------

    def _inject(self, run: Run, fault: Fault, device: str) -> None:
        other = fault.other
        if fault.kind == Kind.cut and other == ANY:
            other = self._random.choice([b for a, b in self._links(run) if a == device])
        now = time.monotonic()
        had_part = device in run.working or (fault.kind == Kind.cut and device in run.devices)
        had_part = had_part and fault.kind != Kind.restart
        self.injected.append(
            Injected(fault.kind, device, _newest(run), round(now - run.begun_s, 3), had_part, other,
                     fault.during)
        )  # fmt: skip
        if had_part:
            until = math.inf if fault.for_s is None else now + fault.for_s
            self._open[len(self.injected) - 1] = _Open(now, _newest(run), len(run.events), until)
        self._do(fault, device, other, now)
        if fault.for_s is not None:
            self._ends.append((now + fault.for_s, fault, device))

    def _do(self, fault: Fault, device: str, other: str, now: float) -> None:
        machines = self._machines
        match fault.kind:
            case Kind.kill if device == COORDINATOR:
                if self._folder is not None:
                    _limit_files(resource.RLIM_INFINITY)  # the disk may be full just now
                    (self._folder / CAME).write_bytes(msgspec.json.encode(self.injected))
                os.kill(os.getpid(), signal.SIGKILL)
            case Kind.kill:
                machines.kill(device)
                self._killed[device] = now
            case Kind.restart:
                del self._killed[device]
                machines.restart(device)
            case Kind.silence:
                machines.silence(device)
            case Kind.cut:
                machines.cut(device, other, math.inf if fault.for_s is None else now + fault.for_s)
            case Kind.slow:
                machines.slow(device, fault.x)
            case Kind.fill_disk:
                _limit_files(0)

    def _end(self, fault: Fault, device: str) -> None:
        match fault.kind:
            case Kind.silence:
                with contextlib.suppress(ProcessLookupError):
                    self._machines.wake(device)
            case Kind.slow:
                self._machines.slow(device, 1.0)
            case Kind.fill_disk:
                _limit_files(resource.RLIM_INFINITY)
            case _:  # the end of a cut is known to the nodes
                pass

    # --- how the run gets over it ---------------------------------------------------------------

    def _see_recovery(self, run: Run, now: float) -> None:
        for place, fault in list(self._open.items()):
            if run.phase is None and fault.is_over(run, self.injected[place]):
                del self._open[place]
                self.injected[place] = msgspec.structs.replace(
                    self.injected[place], recovered_s=round(now - fault.since, 3)
                )


class _Open(Struct, frozen=True):
    """A fault that the run has not got over yet."""

    since: float
    newest: int  # minibatch that some device had done
    events: int  # that the run had noted before
    until: float = math.inf  # when it is over by itself

    def is_over(self, run: Run, injected: Injected) -> bool:
        """Whether a minibatch is done that was not done before, and the loss is no longer ahead."""
        done = dict(run.outcome.done)
        working = [done.get(d, -1) for d in run.working]
        if not working:
            return False
        together = min(working) if run.recovery.goes_back else max(working)
        gone = injected.device not in run.working  # the run goes on without it
        if injected.kind == Kind.kill and not (gone or self._is_noted(run, injected.device)):
            return False
        if (
            injected.kind == Kind.silence
            and run.recovery.waits(run.plan)
            and time.monotonic() < self.until
        ):
            # what was under way may still arrive, though nothing goes on
            return self._is_noted(run, injected.device) and together > self.newest
        return together > self.newest

    def _is_noted(self, run: Run, device: str) -> bool:
        return any(
            event["kind"] == "device_lost" and event.get("device") == device
            for event in run.events[self.events :]
        )


def _newest(run: Run) -> int:
    """The newest minibatch that some device has done."""
    return max(dict(run.outcome.done).values(), default=-1)


def _limit_files(size: int) -> None:
    """No file of this process may grow beyond `size` bytes: writing fails as on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
