"""The conductor of an adaptive run: what `train` hands its minibatches to.

result = runtime.train.train(..., conductor=Adaptive(lambda plan: Replanning("chain", plan)))
result.events
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from torch import Tensor

from weft.adapt.live import Live
from weft.adapt.migrate import Saved
from weft.adapt.steer import Steering
from weft.plans.plan import Plan
from weft.runtime.run.coordinator import Coordinator
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.training import Conducted


class Adaptive:
    """`steering_for` makes, from the first plan, who decides."""

    def __init__(
        self,
        steering_for: Callable[[Plan], Steering],
        *,
        keep_every: int = 100,  # minibatches between collections, where nobody stands by
    ) -> None:
        self._steering_for, self._keep_every = steering_for, keep_every
        self._steering: Steering | None = None
        self._live: Live | None = None

    def first(self, plan: Plan) -> Plan:
        self._steering = self._steering_for(plan)
        return self._steering.first(plan)

    def also(self, plan: Plan) -> tuple[str, ...]:
        assert self._steering is not None
        return self._steering.also(plan)

    def conduct(
        self,
        run: Coordinator,
        first: int,
        last: int,
        optimizer_state: Mapping[str, Tensor],
        on_progress: Callable[[Outcome], None],
    ) -> Conducted:
        """Minibatches first..last-1. Called again, it goes on with what it knows of the fleet."""
        assert self._steering is not None
        begin = time.monotonic()
        if self._live is None or self._live.run is not run:
            saved = Saved(first, run.initial, optimizer_state)
            self._live = Live(run, self._steering, keep_every=self._keep_every, saved=saved)
        live = self._live
        live.on_progress = on_progress
        told, known = len(live.events), set(live.losses)
        live.go(first, last)
        seconds = time.monotonic() - begin
        timeline, nodes = live.timeline()
        losses = {s: loss for s, loss in live.losses.items() if s not in known}
        return Conducted(run.plan, losses, live.events[told:], timeline, nodes, seconds)
