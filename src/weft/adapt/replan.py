"""Re-planning for every strategy: if the step time changes too much, plan again with measured numbers.

    steering = Replanning("chain", plan, options={"devices": "pi,nuc"})

The reference is the step time of the first look after a change of plan. If a later step time differs by
more than `band`, or if a device came, the strategy plans again with the measured speeds and links. Its
new plan is used if it promises to be at least `gain` faster than the old plan under the same conditions.
After a device is lost, the strategy plans with the fleet without it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from weft.adapt.steer import View
from weft.errors import WeftError
from weft.graph.network import Graph
from weft.planning.decide import decide
from weft.planning.fallback import plan_that_fits, within
from weft.planning.task import make_task
from weft.plans.plan import Plan
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
    ) -> None:
        self.strategy, self.options, self.graph = strategy, dict(options or {}), graph
        self.every, self.band, self.gain = every, band, gain
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
        if self._reference is None:
            self._reference = period
            if not new:
                return None
        moved = period / self._reference - 1 if self._reference else 0.0
        if abs(moved) <= self.band and not new:
            return None
        self._reference = period
        try:
            plan = self._decide(view, view.reach)
        except WeftError as error:
            self._failures.append(str(error))
            return None
        before = self._price(view)
        assert plan.predicted is not None
        if _same(plan, view.plan) or plan.predicted.seconds > before * (1 - self.gain):
            return None
        self._reference = None
        why = f"{', '.join(sorted(new))} came" if new else f"a step takes {moved:+.0%}"
        why += f"; predicted {plan.predicted.seconds:.4g} s in place of {before:.4g} s"
        return Change(self._as_meant(plan, view.reach), why, shards_of(view.plan, plan))

    def lost(self, view: View, device: str) -> Change:
        reach = view.reach - {device}
        planned, why = plan_that_fits(self.strategy, self._task(view, reach), view.check)
        self._reference, self._reach = None, reach
        plan = self._as_meant(planned, reach)
        return Change(plan, f"{device} is gone{why}", shards_of(view.plan, planned))

    def _decide(self, view: View, reach: frozenset[str]) -> Plan:
        plan = decide(self.strategy, self._task(view, reach))
        view.check(plan)
        return plan

    def _task(self, view: View, reach: frozenset[str]) -> Task:
        return make_task(
            within(view.watch.profile(), reach), view.watch.fleet().within(reach),
            batch=view.plan.batch, mode="train", options=self.options, graph=self.graph,
            source=view.plan.source, optimizer=view.plan.optimizer,
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


def _same(a: Plan, b: Plan) -> bool:
    fields = ("shards", "micro_batches", "in_flight", "ahead", "stale", "codec", "schedule")
    return all(getattr(a, f) == getattr(b, f) for f in fields)
