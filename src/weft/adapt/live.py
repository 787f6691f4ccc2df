"""A run that watches itself: run, look, decide, migrate; and go on when a device is lost.

    live = Live(run, steering, Reporter(...))
    live.go(0, 400)
    live.events                      # when, what and why

Looks come every `steering.every` minibatches, and cost the pipeline nothing: a series of minibatches is
extended before it ends. Only a change of plan lets it run empty, and so does collecting the weights
(every `keep_every` minibatches, where nobody stands by: what a loss would throw the run back to).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from weft.adapt.migrate import Move, Saved, migrate
from weft.adapt.probes import Probes
from weft.adapt.recover import stop_at
from weft.adapt.steer import Change, Steering, View
from weft.adapt.watch import Watch
from weft.errors import LostDevice, WeftError
from weft.plans.plan import Plan
from weft.program.timeline import Span, Timeline
from weft.runtime.run.coordinator import Coordinator
from weft.runtime.run.outcome import Outcome, Stalled
from weft.runtime.wire import messages as msg

AHEAD_S = (
    0.25  # a look comes this long before the end of its series, so that training need not wait
)
FIRST_PATIENCE_S, LEAST_PATIENCE_S = 5.0, 1.0
PATIENCE = 8  # periods without any news: somebody is out of reach
FIRST_PROBES_S = 5.0
LOST_PROBES_S = 1.0  # training stands still
MOST_LOSSES = 5  # in a row, without a minibatch between them


class Live:
    def __init__(
        self,
        run: Coordinator,
        steering: Steering,
        *,
        keep_every: int = 100,
        saved: Saved | None = None,  # where the run begins: what is left when all else is lost
        on_progress: Callable[[Outcome], None] | None = None,
    ) -> None:
        self.run, self.steering = run, steering
        self.keep_every = keep_every
        self.on_progress = on_progress
        self.watch = Watch(run.plan, shaped=run.settings.shaping == "fabric")
        self.events: list[dict[str, Any]] = []
        self.losses: dict[int, float] = {}
        self.saved = saved
        self.fleet = run.plan.fleet
        self.probes = Probes(run, self.watch)
        run.stalled = self._worker_is_away
        self._begin = time.monotonic()
        self._looked = 0  # the minibatch of the last look
        self._present = frozenset(run.everyone)
        self._spans: list[Span] = []
        self._counts: dict[str, msg.Spans] = {}
        self._change: Change | None = None
        self._begun = False
        self._looked_at = False  # the plan that runs
        self._next = 0  # the first minibatch that is not done
        self._horizon = 0  # where the series that runs will end

    def go(self, first: int, last: int) -> None:
        """Minibatches first..last-1, whatever happens on the way."""
        self._next, losses = first, 0
        lost: LostDevice | Stalled | None = None
        if not self._begun:
            self._start()
        while self._next < last or lost is not None:
            try:
                if lost is not None:
                    self._recover(lost)
                    lost = None
                if self._keeps and (
                    self.saved is None or self._next - self.saved.step >= self.keep_every
                ):
                    self.keep()
                self._series(last)
                losses = 0
            except (LostDevice, Stalled) as error:
                lost, losses = error, losses + 1
                if losses > MOST_LOSSES:
                    raise

    def _start(self) -> None:
        """Before the first minibatch: all servers are probed, and the first decision is made."""
        self._begun = True
        if self.steering.probes:
            self.probes.install()
            self.probes.start(self.probes.servers)
            self.probes.wait(FIRST_PROBES_S)
        change = self.steering.begin(self._view(self._next))
        if change is not None:
            self._migrate(change, self._next)

    @property
    def _keeps(self) -> bool:
        """Whether weights have to be collected, because they exist only once."""
        plan = self.run.plan
        others = {s.device for s in plan.shards if s.device != plan.source}
        return bool(others) and not plan.standby

    def keep(self) -> Saved:
        """Collects all weights; nothing is in flight."""
        state, optimizer = self.run.collect()
        self.saved = Saved(self._next, state, optimizer)
        return self.saved

    # --- one series of minibatches ------------------------------------------------------------------

    def _series(self, last: int) -> None:
        """Runs until a change of plan or a collection is due, or to the end."""
        first = self._next
        self._horizon = min(first + self.steering.every, last)
        self._change, self._looked = None, first
        stop_at_ = first + self.keep_every if self._keeps else last
        self._set_patience()

        def progress(outcome: Outcome) -> None:
            self.losses |= outcome.losses
            if self.on_progress:
                self.on_progress(outcome)
            done = min(outcome.done[d] for d in self.run.working) + 1
            if self._change or self._horizon >= last:
                return
            if done >= self._horizon - self._margin():
                self._look(done)
                if self._change is None and self._horizon < min(last, stop_at_):
                    self._horizon = min(self._horizon + self.steering.every, last)
                    self.run.extend(self._horizon)

        self.run.steps(first, self._horizon, progress)
        self._next = self._horizon
        if self._change is not None and self._next < last:
            self._migrate(self._change, self._next)

    def _margin(self) -> int:
        period = self.watch.period_s or (self.run.plan.predicted.seconds if self.run.plan.predicted
                                         else AHEAD_S)  # fmt: skip
        ahead = math.ceil(AHEAD_S / max(period, 1e-4)) + self.run.plan.stale + 1
        return min(ahead, self.steering.every // 2)

    def _set_patience(self) -> None:
        """Only a worker that the client probes can be told to be out of reach."""
        alone = len({s.device for s in self.run.plan.shards}) != 2
        patience = max(LEAST_PATIENCE_S, PATIENCE * self.watch.period_s)
        if not self._looked_at:  # the first minibatches may take their time
            patience = FIRST_PATIENCE_S
        self.run.patience = None if alone or not self.steering.probes else patience

    def _worker_is_away(self) -> bool:
        """Nothing has been heard for a while: a probe tells a slow worker from one out of reach."""
        worker = next(s.device for s in self.run.plan.shards if s.device != self.run.plan.source)
        if worker not in self.run.crew.present:
            return True
        self.probes.start([worker])
        self.probes.wait(LOST_PROBES_S)
        return worker in self.probes.out_of_reach

    def _look(self, done: int) -> None:
        if done - self._looked < 3:
            return
        self.watch.take(self.run.timeline(self._looked)[0])
        self._looked_at = True
        self._set_patience()
        self._looked = done
        came = self._greet(done)
        view = self._view(done)
        self._change = self.steering.look(view)
        if came and self._change is None:  # the others do not know the way to it yet
            fleet = self.fleet.within(view.present)
            same = msgspec.structs.replace(self.run.plan, fleet=fleet)
            self._change = Change(same, f"{', '.join(came)} can be used")
        if self.steering.probes and not self.probes.under_way:
            busy = set(self.run.working)
            self.probes.start([d for d in self.probes.servers if d not in busy])

    def _view(self, step: int, without: str | None = None) -> View:
        present = (frozenset(self.run.crew.present) & set(self.fleet.names)) - {without}
        return View(step, time.monotonic() - self._begin, self.run.plan, self.watch,
                    present - self.probes.out_of_reach, present,
                    self.probes.take_faster())  # fmt: skip

    def _greet(self, step: int) -> list[str]:
        """Notices who has come and who has gone among those that have no part in the plan."""
        now = frozenset(d for d in self.run.crew.present if d in self.fleet.names)
        for device in sorted(now - self._present):
            self.run.plan = msgspec.structs.replace(self.run.plan, fleet=self.fleet.within(now))
            self._note(step, "device_joined", f"{device} is there", device=device)
            self.run.enlist(device)
            self.probes.install()
        for device in sorted(self._present - now):
            self.probes.forget(device)
            if device not in self.run.devices:
                self._note(step, "device_lost", f"{device} is gone; it had no part", device=device)
        came = sorted(now - self._present)
        self._present = now
        return came

    # --- changes ------------------------------------------------------------------------------------

    def _migrate(self, change: Change, step: int) -> Move:
        before = self.run.plan
        self._gather()
        move = self._change_to(change)
        self._note(step, kind_of(before, change.plan), change.why, **change.what,
                   moved_bytes=move.bytes, seconds=round(move.seconds, 4))  # fmt: skip
        return move

    def _recover(self, error: LostDevice | Stalled) -> None:
        begin = time.monotonic()
        device = self._blame(error)
        dead = isinstance(error, LostDevice)
        stop = stop_at(self.run, device if dead else None, str(error), self._next)
        self._next = stop.resume
        self._note(stop.resume, "device_lost", str(error), device=device)
        if dead:
            self.probes.forget(device)
        else:
            self.probes.out_of_reach.add(device)
        self._gather(without=device if dead else None)
        if self.steering.probes:
            away = self.probes.out_of_reach | {device}
            self.probes.start([d for d in self.probes.servers if d not in away])
            self.probes.wait(LOST_PROBES_S)
        change = self.steering.lost(self._view(stop.resume, without=device), device)
        move = self._change_to(change, gone={device} if dead else ())
        self._present = frozenset(self.run.crew.present)
        if move.back_to is not None:
            self._next = move.back_to
        self._note(self._next, "recovered", change.why, **change.what, seconds=_since(begin),
                   repeated=stop.begun - self._next, moved_bytes=move.bytes)  # fmt: skip

    def _change_to(self, change: Change, gone: Iterable[str] = ()) -> Move:
        if change.pause_s and self.run.settings.paced:
            time.sleep(change.pause_s)  # what the emulated fleet's profiling would take
        move = migrate(self.run, change.plan, gone=gone, saved=self.saved)
        self.watch.follow(self.run.plan)
        self._looked_at = False
        return move

    def _blame(self, error: LostDevice | Stalled) -> str:
        if isinstance(error, LostDevice):
            if error.device == self.run.plan.source:
                raise error  # the data is gone with it
            return error.device
        others = [s.device for s in self.run.plan.shards if s.device != self.run.plan.source]
        if len(set(others)) != 1:
            raise error  # nobody can tell which of several it is
        return others[0]

    def _note(self, step: int, kind: str, why: str, **what: Any) -> None:
        self.events.append(
            {"step": step, "kind": kind, "why": why, "at_s": _since(self._begin), **what}
        )

    # --- what is told -------------------------------------------------------------------------------

    def _gather(self, without: str | None = None) -> None:
        """Takes the spans of the devices before a new plan makes them begin anew."""
        asked = [d for d in self.run.everyone if d != without]
        try:
            spans, counts = self.run.spans(asked)
        except WeftError:
            return  # what has gone took its part of the timeline with it
        self._spans += spans
        for device, found in counts.items():
            known = self._counts.get(device)
            self._counts[device] = found if known is None else _added(known, found)

    def timeline(self) -> tuple[Timeline, dict[str, msg.Spans]]:
        """What happened in the whole run, under all of its plans."""
        self._gather()
        return self.run.as_timeline(self._spans), self._counts


def kind_of(before: Plan, after: Plan) -> str:
    """`worker_changed` where other devices compute than before, else `replanned`."""
    if {s.device for s in before.shards} != {s.device for s in after.shards}:
        return "worker_changed"
    return "replanned"


def _since(begin: float) -> float:
    return round(time.monotonic() - begin, 3)


def _added(a: msg.Spans, b: msg.Spans) -> msg.Spans:
    counts = {k: a.counts.get(k, 0) + b.counts.get(k, 0) for k in {**a.counts, **b.counts}}
    return msg.Spans((), counts, a.compute_cpu_s + b.compute_cpu_s, a.total_cpu_s + b.total_cpu_s)
