"""Faults as a script: which device dies, falls silent or comes back, and at which minibatch.

    with Faults().kill(20).restart(40) as faults:
        weft.train(model, faults.feed(pairs), ..., on_progress=faults.progress)

The device is chosen when the fault comes: one that has a part in the plan and is not the source. Faults come
from the thread of the run itself, so that the run cannot be over before the fault.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.run import Run

WAIT_S = 60.0  # for a device that comes back


class Faults:
    def __init__(self) -> None:
        self._script: list[tuple[int, Callable[[], None]]] = []
        self._enter, self._steps = LocalFleet.__enter__, Run.steps
        self.device = ""  # who had the fault
        self.had_part = False
        self.fleet: LocalFleet
        self.run: Run

    def kill(self, step: int) -> Faults:
        self._script.append((step, self._kill))
        return self

    def restart(self, step: int) -> Faults:
        self._script.append((step, self._restart))
        return self

    def silence(self, step: int) -> Faults:
        self._script.append((step, self._silence))
        return self

    @property
    def all_came(self) -> bool:
        return not self._script

    def feed(self, pairs: Any) -> Any:
        """The same samples; who feeds them looks whether a fault is due. A set's name stays as it is."""
        if isinstance(pairs, str):
            return pairs

        def fed(step: int) -> Any:
            self._look()
            return pairs(step)

        return fed

    def progress(self, step: Any) -> None:
        """Looks whether a fault is due; wakes who has been silent long enough."""
        if step.what == "training":
            self._look()
        if any(event["kind"] in ("device_silent", "device_lost") for event in self._events):
            self._wake()

    @property
    def _events(self) -> list[dict[str, Any]]:
        return self.run.events if hasattr(self, "run") else []

    def _look(self) -> None:
        """A fault of minibatch n comes when a device has done n: samples alone are fed far ahead."""
        done = max(self.run.outcome.done.values(), default=-1) if hasattr(self, "run") else -1
        while self._script and self._script[0][0] <= done and self._may(self._script[0][1]):
            self._script.pop(0)[1]()

    def _may(self, act: Callable[[], None]) -> bool:
        """A device comes back when its loss is known."""
        if act != self._restart or not self.had_part:
            return True
        return any(event["kind"] == "device_lost" for event in self._events)

    def _choose(self) -> str:
        plan = self.run.plan
        parts = [d for d in plan.devices if d != plan.source]
        self.had_part = bool(parts)
        self.device = (parts or [d for d in plan.fleet.names if d != plan.source])[-1]
        return self.device

    def _kill(self) -> None:
        self.fleet.kill(self._choose())

    def _restart(self) -> None:
        self.fleet.restart(self.device)
        self.fleet.crew.wait_for([self.device], WAIT_S)

    def _silence(self) -> None:
        os.kill(self.fleet.processes[self._choose()].pid, signal.SIGSTOP)

    def _wake(self) -> None:
        process = self.fleet.processes[self.device]
        if process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)

    def __enter__(self) -> Faults:
        def entered(fleet: LocalFleet) -> LocalFleet:
            self.fleet = fleet
            return self._enter(fleet)

        def steps(run: Run, *given: Any) -> Any:
            self.run = run
            return self._steps(run, *given)

        LocalFleet.__enter__, Run.steps = entered, steps  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        LocalFleet.__enter__, Run.steps = self._enter, self._steps  # type: ignore[method-assign]
