"""The adviser of a run that nobody steers: it plans without lost devices, and takes back who returns.

    adviser = Survivors("hiertrain+", plan, options, graph)

The strategy is asked again for those who are left. Where it has no plan for them (HierTrain needs an edge
server or a cloud machine), another strategy that fits is taken. At the very least the device with the
data goes on alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from weft.errors import LostDevice, WeftError
from weft.graph.network import Graph
from weft.planning.fallback import plan_that_fits, within
from weft.planning.task import make_task
from weft.plans.plan import Plan
from weft.runtime.run.advice import Adviser, Change
from weft.runtime.run.ahead import PlansAhead
from weft.runtime.run.checks import check_loss

if TYPE_CHECKING:
    from weft.runtime.run.run import Run

LOOK_S = 1.0  # between two looks for devices that are back
LEAST_EVERY = 16  # minibatches


class Survivors(Adviser):
    """Plans for those who are left, and looks for those who are back."""

    def __init__(
        self, strategy: str, plan: Plan, options: Mapping[str, object], graph: Graph | None
    ) -> None:
        self.strategy, self.options, self.graph = strategy, dict(options), graph
        self._fleet, self._profile = plan.fleet, plan.profile  # as they were meant to be
        step_s = plan.predicted.seconds if plan.predicted else LOOK_S
        self.every = max(LEAST_EVERY, math.ceil(LOOK_S / max(step_s, 1e-6)))
        self._plans: PlansAhead | None = None  # made when the run is known
        self._first_plan = plan

    def also(self, plan: Plan) -> tuple[str, ...]:
        return plan.fleet.names

    def margin(self, run: Run) -> int:
        return self.every // 2

    def look(self, run: Run, done: int) -> Change | None:
        """A device that was lost and is there again gets a part, where the strategy has one for it."""
        back = sorted(run.returned())
        if not back:
            self._plan_ahead(run)
            return None
        for device in back:
            run.absent.discard(device)
            try:
                run.enlist(device)
            except LostDevice:
                run.absent.add(device)  # it is gone again: the others need not stop for that
                continue
            except WeftError:
                run.absent.add(device)  # it cannot reach its neighbours yet
                raise
            run.note(done, "device_joined", f"{device} is there again", device=device)
        back = [device for device in back if device not in run.absent]
        if not back:
            return None
        plan, _ = self._plan(run, self._present(run))
        return Change(plan, f"{', '.join(back)} can be used", shards_of(run.plan, plan))

    def lost(self, run: Run, step: int, device: str) -> Change:
        plan, why = self._plan(run, self._present(run) - {device})
        return Change(plan, f"{device} is gone{why}", shards_of(run.plan, plan))

    def _present(self, run: Run) -> frozenset[str]:
        there = set(run.crew.present) - run.absent
        return frozenset(d for d in self._fleet.names if d in there)

    def _plan_ahead(self, run: Run) -> None:
        """A plan without each of the devices that have a part, in case one of them is lost."""
        present, sources = self._present(run), run.plan.sources
        needed = [d for d in run.plan.devices if d in present and d not in sources]
        self._ahead(run).consider([present - {device} for device in needed])

    def _plan(self, run: Run, present: frozenset[str]) -> tuple[Plan, str]:
        """For these devices: the plan that the run began with, or one that was made before, or a new one."""
        return self._ahead(run).of(present)

    def _ahead(self, run: Run) -> PlansAhead:
        if self._plans is None:
            first = self._first_plan
            self._plans = PlansAhead(partial(self._decide, run), first.planning_s)
            self._plans.remember(frozenset(self._fleet.names), (first, ""))
        return self._plans

    def _decide(self, run: Run, present: frozenset[str]) -> tuple[Plan, str]:
        task = make_task(
            within(self._profile, present), self._fleet.within(present), batch=run.plan.batch,
            mode=run.plan.mode, options=self.options, graph=self.graph, source=run.plan.source,
            optimizer=run.plan.optimizer, objective=run.plan.objective,
        )  # fmt: skip
        return plan_that_fits(self.strategy, task, partial(check_loss, run.graph))


def shards_of(before: Plan, after: Plan) -> dict[str, object]:
    """Who computed what before and after, for the run's events."""

    def spelled(plan: Plan) -> list[str]:
        return [f"{s.device} {s.layers[0]}-{s.layers[1]}" for s in plan.shards]

    return {"shards": [spelled(before), spelled(after)]}
