"""Keeps a service balanced: when a device becomes slower or faster, the strategy is asked again.

    Service(attendants=Balance)

A look reads what the devices did since the last one, at most every two seconds and never while nothing is
asked. If a device's speed differs by more than `BAND` from the speed that the running plan was made for,
in two looks one after the other, the strategy plans with the measured speeds. Its plan is taken if it is
predicted to answer at least `GAIN` faster than the running plan under the same conditions.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from weft.adapt.watch import Watch
from weft.plans.profile import Profile
from weft.runtime.run.advice import Change
from weft.runtime.run.serving.attendants import Attendants
from weft.runtime.run.survivors import shards_of
from weft.simulate.price import price

if TYPE_CHECKING:
    from weft.runtime.run.run import Run

MEASURE_S = 2.0
LEAST_REQUESTS = 10  # fewer say little about a device
BAND = 0.3
GAIN = 0.1


class Balance(Attendants):
    """Plans again when somebody is gone, back, slower or faster."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._watch: Watch | None = None
        self._planned: dict[str, float] = {}  # the slowdowns that the running plan was made for
        self._moved: set[str] = set()  # whose speed differed at the last look
        self._since, self._measured_s = 0, time.monotonic()

    def look(self, run: Run, done: int) -> Change | None:
        change = super().look(run, done)
        if change is not None or time.monotonic() - self._measured_s < MEASURE_S:
            return change
        if done - self._since < LEAST_REQUESTS:
            return None
        try:
            return self._balanced(run, done)
        finally:
            self._since, self._measured_s = done, time.monotonic()

    def follow(self, run: Run) -> None:
        if self._watch is not None:
            self._watch.follow(run.plan)
        self._moved = set()

    def _balanced(self, run: Run, done: int) -> Change | None:
        if self._watch is None:
            self._watch = Watch(run.plan, shaped=False)
        self._watch.take(run.look_back(self._since))
        before, self._moved = self._moved, {d for d in run.working if self._has_moved(d)}
        if not before & self._moved:
            return None
        present = self._present(run)
        plan, _ = self._decide(run, present, self._scaled(self._profile))
        self._planned |= {d: self._watch.slowdown(d) for d in run.working}
        measured = msgspec.structs.replace(run.plan, profile=self._scaled(run.plan.profile))
        now = price(measured).seconds
        assert plan.predicted is not None
        if plan.predicted.seconds > now * (1 - GAIN):
            return None
        slow = ", ".join(f"{d} x{self._watch.slowdown(d):.2g}" for d in sorted(self._moved))
        why = f"{slow}; predicted {plan.predicted.seconds:.4g} s in place of {now:.4g} s"
        # Emulated devices are paced by the plan's profile: it is the one that was meant.
        meant = msgspec.structs.replace(plan, profile=self._scaled(plan.profile, back=True))
        return Change(meant, why, shards_of(run.plan, plan))

    def _scaled(self, profile: Profile, back: bool = False) -> Profile:
        """The profile at the measured speeds; `back`: from these to what was meant."""
        assert self._watch is not None
        slowdowns = {d: self._watch.slowdown(d) for d in profile.devices}
        devices = {
            d: times.scaled(1 / slowdowns[d] if back else slowdowns[d])
            for d, times in profile.devices.items()
        }
        return msgspec.structs.replace(profile, devices=devices)

    def _has_moved(self, device: str) -> bool:
        assert self._watch is not None
        ratio = self._watch.slowdown(device) / self._planned.get(device, 1.0)
        return not 1 / (1 + BAND) < ratio < 1 + BAND
