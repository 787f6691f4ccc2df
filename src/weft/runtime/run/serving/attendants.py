"""The adviser of a service: it plans for those who are left, and for those who are back.

    adviser = Attendants("coopai", plan, profile, options, graph, state)

Here every device may be lost, also the one that loads: the samples come from this machine, so any
other device can load them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from weft.errors import InputError, WeftError
from weft.graph.network import Graph
from weft.planning.exactness import renewed_buffers, samples_apart
from weft.planning.fallback import plan_that_fits, within
from weft.planning.task import make_task
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.runtime.run.advice import Adviser, Change
from weft.runtime.run.recovery.clone import units_weigh
from weft.runtime.run.survivors import LOOK_S, Survivors
from weft.simulate.price import priced
from weft.strategies.stitchnet.copies import copied

if TYPE_CHECKING:
    from weft.runtime.run.run import Run

ANY = 1 << 30  # requests: a look is due by the clock, not by their number
TRIES = 3  # devices that are tried as the one that loads


class Unchanging(Adviser):
    """The plan stays as it is; requests may come at any time."""

    every = ANY

    def margin(self, run: Run) -> int:
        return ANY


class NobodyLeft(WeftError):
    """The devices that are there cannot answer: there is no plan for them."""


class Attendants(Survivors):
    """Plans again with the strategy, the options and the profile that the service began with."""

    def __init__(
        self,
        strategy: str,
        plan: Plan,
        profile: Profile,
        options: Mapping[str, object],
        graph: Graph,
        state: Mapping[str, Tensor],
    ) -> None:
        super().__init__(strategy, plan, options, graph)
        self._profile, self._source, self._state = profile, plan.source, state
        self.every = ANY
        self._looked = time.monotonic()

    def margin(self, run: Run) -> int:
        return ANY

    def look(self, run: Run, done: int) -> Change | None:
        if time.monotonic() - self._looked < LOOK_S:
            return None
        try:
            return super().look(run, done)
        finally:
            self._looked = time.monotonic()

    def _decide(
        self, run: Run, present: frozenset[str], profile: Profile | None = None
    ) -> tuple[Plan, str]:
        assert self.graph is not None
        known = within(profile or self._profile, present)
        reasons = []
        for source in self._sources(present):
            task = make_task(
                known, self._fleet.within(present), batch=run.plan.batch, mode=run.plan.mode,
                options=self.options, graph=self.graph, source=source,
            )  # fmt: skip
            try:
                plan, why = plan_that_fits(self.strategy, task, partial(check_outputs, self.graph))
            except WeftError as error:
                reasons.append(str(error))
                continue
            if source != self._source:
                why += f"; {source} loads the samples in place of {self._source}"
            return with_copies(plan, self.graph, self._state), why
        raise NobodyLeft(f"nobody is left who can answer: {'; '.join(reasons) or 'no device'}")

    def _sources(self, present: frozenset[str]) -> list[str]:
        """Who may load the samples: the device that was meant to or, if it is gone, the fastest ones."""
        if self._source in present:
            return [self._source]
        last = len(self._profile.layers) - 1
        times = {d: self._profile.devices[d].forward(0, last, 1) for d in present}
        return sorted(times, key=lambda d: (times[d], d))[:TRIES]


def with_copies(plan: Plan, graph: Graph, state: Mapping[str, Tensor]) -> Plan:
    """The plan of a swarm that copies its most important units, with these copies."""
    if plan.swarm is None or not plan.swarm.copied:
        return plan
    return priced(copied(plan, units_weigh(graph, state)))


def check_outputs(graph: Graph, plan: Plan) -> None:
    """InputError if the plan cannot compute all outputs as they are, or cannot put them together."""
    if (plan.rounds or plan.swarm) and (len(graph.inputs) > 1 or graph.further_outputs):
        raise InputError(
            f"the plan of {plan.strategy} parts the layers of networks with one input and one output; "
            f"{graph.name} has {len(graph.inputs)} inputs and {len(graph.outputs)} outputs"
        )
    if graph.mixes and samples_apart(plan):
        raise InputError(
            f"in {graph.name} the answer for a sample depends on the other samples of its batch "
            f"({graph.mixes}), and the plan of {plan.strategy} cuts batches of {plan.batch} into pieces. "
            "Plan with --set micro_batches=1 and a strategy that gives no device a share of the samples "
            "(such as chain), or compute each sample for itself"
        )
    if samples_apart(plan) and (buffers := renewed_buffers(graph)):
        raise InputError(
            f"{graph.name} changes {', '.join(buffers)} with every batch that it answers, and the plan of "
            f"{plan.strategy} cuts batches of {plan.batch} into pieces, each of which would change it. Plan "
            "with --set micro_batches=1 and a strategy that gives no device a share of the samples "
            "(such as chain)"
        )
    whole = [name for name in graph.outputs if graph.values[name].batch_dim is None]
    if whole and plan.micro_batches > 1:
        raise InputError(
            f"{graph.name} returns {', '.join(whole)}, which has no row for each sample, so that the answer "
            f"of a batch does not follow from its {plan.micro_batches} micro-batches; plan with "
            "--set micro_batches=1"
        )
