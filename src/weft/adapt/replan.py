"""Re-planning for every strategy: if the step time changes too much, plan again with measured numbers.

    steering = Replanning("chain", plan, options={"devices": "pi,nuc"})

The reference is the step time of the first look after a change of plan. If a later step time differs by
more than `band`, or if a device came, the strategy plans again with the measured speeds and links. Its
new plan is used if it promises to be at least `gain` faster than the old plan under the same conditions.
After a device is lost, the strategy plans with the fleet without it.

On real devices a plan must also keep what it promised. If a step takes more than `slack` longer than
predicted, the plan is priced again with what was measured (`reprice`). The whole network on one device is
then a candidate too, and so are plans that ran before, each with its measured time: a change that did not
help is taken back.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping

import msgspec

from weft.adapt.history import History, same_plan
from weft.adapt.reprice import repriced
from weft.adapt.steer import View
from weft.errors import WeftError
from weft.graph.network import Graph
from weft.planning.decide import decide
from weft.planning.fallback import plan_that_fits, within
from weft.planning.one_place import one_places
from weft.planning.task import make_task
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.plans.task import Task
from weft.runtime.run.advice import Change
from weft.runtime.run.survivors import shards_of
from weft.simulate.price import price


class Replanning:
    """Asks the strategy again when the step time leaves its band, or when a device comes or is lost."""

    probes = False

    def __init__(
        self,
        strategy: str,
        plan: Plan,
        *,
        options: Mapping[str, object] | None = None,
        graph: Graph | None = None,
        every: int = 50,
        band: float = 0.10,  # the share by which the step time may change without a new plan
        gain: float = 0.05,  # the share by which a new plan must be faster
        # The share by which a step may take longer than predicted. None: emulated devices keep their pace, so
        # that a slow step says something about this machine only.
        slack: float | None = None,
    ) -> None:
        self.strategy, self.options, self.graph = strategy, dict(options or {}), graph
        self.every, self.band, self.gain, self.slack = every, band, gain, slack
        self._history = History()
        self._fleet, self._profile = plan.fleet, plan.profile  # those that the run began with
        self._reference: float | None = None
        self._reach: frozenset[str] | None = None
        self._failures: list[str] = []

    def notes(self) -> list[tuple[str, str]]:
        failures, self._failures = self._failures, []
        return [("advice_failed", why) for why in failures]

    def first(self, plan: Plan) -> Plan:
        return plan

    def begin(self, view: View) -> Change | None:
        return None

    def also(self, plan: Plan) -> tuple[str, ...]:
        return plan.fleet.names

    def look(self, view: View) -> Change | None:
        period = view.watch.period_s
        new = view.reach - (self._reach or view.reach)
        self._reach = view.reach
        slow = self._slower_than_predicted(view)
        self._history.measured(view.plan, period, view.step)
        if self._reference is None:
            self._reference = period
            if not new and not slow:
                return None
        moved = period / self._reference - 1 if self._reference else 0.0
        if abs(moved) <= self.band and not new and not slow:
            return None
        self._reference = period
        if slow and not self._history.may_change(view.step):
            return None
        try:
            plan, seconds = self._best(view, slow)
        except WeftError as error:
            self._failures.append(str(error))
            return None
        before = period if slow else self._price(view)
        if same_plan(plan, view.plan) or seconds > before * (1 - self.gain):
            return None
        self._reference = None
        self._history.changed(view.step, self.every)
        if plan.predicted is not None:  # a plan that ran before promises what was measured
            promised = msgspec.structs.replace(plan.predicted, step_s=seconds)
            plan = msgspec.structs.replace(plan, predicted=promised)
        why = f"{', '.join(sorted(new))} came" if new else slow or f"a step takes {moved:+.0%}"
        why += f"; predicted {seconds:.4g} s in place of {before:.4g} s"
        return Change(self._as_meant(plan, view.reach), why, shards_of(view.plan, plan))

    def _slower_than_predicted(self, view: View) -> str:
        """Why the plan is to be priced again; empty if it keeps what it promised."""
        predicted = view.plan.predicted.seconds if view.plan.predicted else 0.0
        period = view.watch.period_s
        if self.slack is None or not predicted or period <= predicted * (1 + self.slack):
            return ""
        return f"a step takes {period:.4g} s, and {predicted:.4g} s were predicted"

    def _best(self, view: View, slow: str) -> tuple[Plan, float]:
        """The plan that is fastest by what was measured, and its seconds. Where a plan proved slow, one place
        for everything, and plans that ran before, are candidates too."""
        profile = view.watch.profile()
        if slow:
            profile = repriced(
                msgspec.structs.replace(view.plan, fleet=view.watch.fleet()),
                profile,
                view.watch.period_s,
            )
        task = self._task(view, view.reach, profile)
        if view.reach >= frozenset(self._fleet.names):
            plan = decide(self.strategy, task)
            view.check(plan)
        else:  # the options may name a device that is gone, as after its loss
            plan, _ = plan_that_fits(self.strategy, task, view.check)
        assert plan.predicted is not None
        best = plan, self._history.seconds(plan, view.step, plan.predicted.seconds)
        for other in (*one_places(task), *self._history.plans(view.reach)) if slow else ():
            seconds = other.predicted.seconds if other.predicted else math.inf
            seconds = self._history.seconds(other, view.step, seconds)
            with contextlib.suppress(WeftError):
                view.check(other)
                best = min(best, (other, seconds), key=lambda choice: choice[1])
        return best

    def lost(self, view: View, device: str) -> Change:
        reach = view.reach - {device}
        planned, why = plan_that_fits(self.strategy, self._task(view, reach), view.check)
        self._reference, self._reach = None, reach
        plan = self._as_meant(planned, reach)
        return Change(plan, f"{device} is gone{why}", shards_of(view.plan, planned))

    def _task(self, view: View, reach: frozenset[str], profile: Profile | None = None) -> Task:
        costs = view.watch.profile() if profile is None else profile
        return make_task(
            within(costs, reach), view.watch.fleet().within(reach),
            batch=view.plan.batch, mode="train", options=self.options, graph=self.graph,
            source=view.plan.source, optimizer=view.plan.optimizer, objective=view.plan.objective,
        )  # fmt: skip

    def _price(self, view: View) -> float:
        """Seconds of the running plan under the measured conditions."""
        measured = msgspec.structs.replace(
            view.plan, fleet=view.watch.fleet(), profile=view.watch.profile()
        )
        try:
            return price(measured).seconds
        except WeftError:
            return view.watch.period_s

    def _as_meant(self, plan: Plan, reach: frozenset[str]) -> Plan:
        """The plan with the fleet and profile that the run began with: emulated devices are paced by them."""
        return msgspec.structs.replace(
            plan, fleet=self._fleet.within(reach), profile=within(self._profile, reach)
        )
