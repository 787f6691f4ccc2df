"""The adviser that watches a run: it reads the timeline, probes servers, and asks a steering for changes.

    run = Run(..., adviser=Adaptive(lambda plan: Replanning("chain", plan)))

A look happens every `steering.every` minibatches. It does not slow the pipeline down, because a series of
minibatches is extended before it ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import msgspec

from weft.adapt.probes import Probes
from weft.adapt.steer import Steering, View
from weft.adapt.watch import Watch
from weft.errors import LostDevice, WeftError
from weft.fleet.fleet import Fleet
from weft.plans.plan import Plan
from weft.runtime.run.advice import Adviser, Change
from weft.runtime.run.checks import check_loss
from weft.runtime.run.run import Run

AHEAD_S = 0.25  # a look begins so long before the end of its series, so that training need not wait
FIRST_PATIENCE_S, LEAST_PATIENCE_S = 5.0, 1.0
PATIENCE = 8  # after so many periods without news a device may be out of reach
LEAST_LOOKED = 3  # minibatches: fewer say nothing


class Adaptive(Adviser):
    """Watches a run and asks who decides. `steering_for` makes the steering from the first plan."""

    watch: Watch
    probes: Probes

    def __init__(self, steering_for: Callable[[Plan], Steering]) -> None:
        self._steering_for = steering_for
        self._steering: Steering | None = None
        self._looked = 0  # the minibatch of the last look
        self._looked_at = False  # whether the present plan was already looked at
        self._present: frozenset[str] = frozenset()

    @property
    def steering(self) -> Steering:
        """Who decides; it exists from the first plan on."""
        assert self._steering is not None
        return self._steering

    @property
    def every(self) -> int:  # type: ignore[override]
        return self.steering.every

    def first(self, plan: Plan) -> Plan:
        self._steering = self._steering_for(plan)
        return self.steering.first(plan)

    def also(self, plan: Plan) -> tuple[str, ...]:
        return self.steering.also(plan)

    def begin(self, run: Run, step: int) -> Change | None:
        """Before the first minibatch: all servers are probed, and the first decision is made."""
        self.watch = Watch(run.plan, shaped=run.settings.shaping == "fabric")
        self.probes = Probes(run, self.watch)
        run.stalled = lambda: self._worker_is_away(run)
        self._present = frozenset(run.everyone)
        self._looked = step
        if self.steering.probes:
            self.probes.install()
            self.probes.start(self.probes.everyone)
            self.probes.wait()
        change = self.steering.begin(self._view(run, step))
        self._tell(run, step)
        self._set_patience(run)
        return change

    def _tell(self, run: Run, step: int) -> None:
        for kind, why in self.steering.notes():
            run.note(step, kind, why)

    # --- looks ----------------------------------------------------------------------------------

    def margin(self, run: Run) -> int:
        predicted = run.plan.predicted.seconds if run.plan.predicted else AHEAD_S
        period = self.watch.period_s or predicted
        ahead = math.ceil(AHEAD_S / max(period, 1e-4)) + run.plan.stale + 1
        return min(ahead, self.every // 2)

    def look(self, run: Run, done: int) -> Change | None:
        if done - self._looked < LEAST_LOOKED:
            return None
        if not set(run.devices) <= set(run.crew.present):
            return None  # a device has just gone: the run will recover first
        self.watch.take(run.look_back(self._looked))
        self._looked_at = True
        for device in run.working:
            if device != run.plan.source:
                self.probes.worked(device)
        self._set_patience(run)
        self._looked = done
        came = self._greet(run, done)
        view = self._view(run, done)
        change = self.steering.look(view)
        self._tell(run, done)
        if came and change is None:  # the other devices do not know the way to it yet
            same = msgspec.structs.replace(run.plan, fleet=_known(run, view.present))
            change = Change(same, f"{', '.join(came)} can be used")
        if self.steering.probes and not self.probes.under_way:
            busy = set(run.working)
            self.probes.start([d for d in self.probes.servers if d not in busy], training=True)
        return change

    def _view(self, run: Run, step: int, without: str | None = None) -> View:
        there = frozenset(run.crew.present) - run.absent
        present = (there & set(run.fleet.names)) - {without}
        away = self.probes.out_of_reach
        return View(step, time.monotonic() - run.begun_s, run.plan, self.watch,
                    present - away.keys(), present, self.probes.take_faster(), dict(away),
                    partial(check_loss, run.graph))  # fmt: skip

    def _greet(self, run: Run, step: int) -> list[str]:
        """Note devices without a part in the plan that came or are gone; return those that came."""
        now = frozenset(d for d in run.crew.present if d in run.fleet.names)
        came = sorted(run.resting.rested(now - self._present))
        for device in came:
            run.absent.discard(device)
            run.plan = msgspec.structs.replace(run.plan, fleet=_known(run, now))
            run.note(step, "device_joined", f"{device} is there", device=device)
            run.enlist(device)
            self.probes.install()
        for device in sorted(self._present - now):
            self.probes.forget(device)
            if device not in run.devices:
                run.note(step, "device_lost", f"{device} is gone; it had no part", device=device)
        self._present = (now & self._present) | set(came)
        return came

    # --- a lost device --------------------------------------------------------------------------

    def _set_patience(self, run: Run) -> None:
        """Set how long the run waits for news. Only a worker that the client probes can be out of reach."""
        alone = len({s.device for s in run.plan.shards}) != 2
        patience = max(LEAST_PATIENCE_S, PATIENCE * self.watch.period_s)
        if not self._looked_at:  # the first minibatches may take longer
            predicted = run.plan.predicted.seconds if run.plan.predicted else 0.0
            patience = max(FIRST_PATIENCE_S, PATIENCE * predicted)
        run.patience = None if alone or not self.steering.probes else patience

    def _worker_is_away(self, run: Run) -> bool:
        """No news for a while: a probe shows whether the worker is slow or out of reach."""
        worker = next(s.device for s in run.plan.shards if s.device != run.plan.source)
        if worker not in run.crew.present:
            return True
        self.probes.start([worker], training=True)
        self.probes.wait()
        return worker in self.probes.out_of_reach

    def blame(self, run: Run, fault: WeftError) -> str:
        if isinstance(fault, LostDevice):
            return super().blame(run, fault)
        others = {s.device for s in run.plan.shards if s.device != run.plan.source}
        if len(others) != 1:
            raise fault  # it cannot be told which of several devices it is
        return others.pop()

    def lost(self, run: Run, step: int, device: str) -> Change:
        if device in run.absent:
            self.probes.forget(device)
        else:
            self.probes.out_of_reach.setdefault(device, f"{device} was lost")
        if self.steering.probes:
            away = self.probes.out_of_reach.keys() | {device}
            self.probes.start([d for d in self.probes.servers if d not in away])
            self.probes.wait()
        change = self.steering.lost(self._view(run, step, without=device), device)
        self._present = frozenset(run.crew.present) - run.absent
        return change

    def pause(self, run: Run, change: Change) -> None:
        if change.pause_s and run.settings.paced:
            time.sleep(change.pause_s)  # the time that profiling would take on the emulated fleet

    def follow(self, run: Run) -> None:
        self.watch.follow(run.plan)
        self._looked_at = False
        self._set_patience(run)


def _known(run: Run, present: frozenset[str]) -> Fleet:
    """The fleet of those who are there. A device of the plan that has just gone stays in it until the run
    recovers: a plan must know all of its devices."""
    return run.fleet.within(present | set(run.devices))
