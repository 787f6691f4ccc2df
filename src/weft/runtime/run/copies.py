"""Copies of all weights by minibatch, as devices report them: where a run goes back to.

    copies = Copies(Copy(0, state, memory))
    copies.take(kept, wanted, place)      # a piece of a device's report
    copies.newest                         # the newest minibatch of which every device has reported

A copy is taken without a pause: every device copies what it knows after the same minibatch, when it comes
to it, and reports the copy while it works on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from weft.graph.optimizer_words import slots_of
from weft.plans.plan import Plan
from weft.runtime.run.dispatch import State
from weft.runtime.wire import messages as msg

# Copying, sending and receiving take about 0.7 ms of CPU time per megabyte of state. A copy every 50 times
# as long costs 2% of a run.
CPU_S_PER_BYTE = 0.7e-9
SHARE = 50
LEAST_S = 0.25


@dataclass(frozen=True)
class Copy:
    """The whole network and the optimizer's memory as they are before minibatch `step`."""

    step: int
    state: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]


Place = Callable[[Mapping[str, tuple[State, State]], State, State], None]


class Copies:
    """Puts devices' reports together; knows the newest copy of the whole network."""

    def __init__(self, first: Copy) -> None:
        self.newest = first
        self._parts: dict[int, dict[str, tuple[State, State]]] = {}  # minibatch -> device
        self._whole: dict[int, set[str]] = {}  # minibatch -> devices that have reported all of it

    def take(
        self, kept: msg.Kept, wanted: Collection[str], place: Place, base: State
    ) -> Copy | None:
        """A piece of a report; the copy, where it was the last that was missing. What no device has is as
        in `base`."""
        parts = self._parts.setdefault(kept.step, {})
        state = parts.setdefault(kept.device, ({}, {}))
        try:
            state[kept.optimizer].update(load_safetensors(kept.data))
        except SafetensorError:
            return None  # that device's report stays incomplete, and the copy before it counts
        complete = self._whole.setdefault(kept.step, set())
        if kept.last:
            complete.add(kept.device)
        if not complete >= set(wanted):
            return None
        whole: tuple[State, State] = base, {}
        place(parts, *whole)
        self.newest = Copy(kept.step + 1, *whole)
        self._forget_through(kept.step)
        return self.newest

    def begin_anew(self) -> None:
        """Another plan: what was reported under the one before will not become whole."""
        self._parts, self._whole = {}, {}

    def _forget_through(self, step: int) -> None:
        self._parts = {n: parts for n, parts in self._parts.items() if n > step}
        self._whole = {n: devices for n, devices in self._whole.items() if n > step}


def interval(plan: Plan) -> int:
    """Minibatches between two copies: so many that they cost about 2% of the run."""
    weights = sum(layer.param_bytes for layer in plan.profile.layers)
    # A copy holds the weight and the optimizer's memory of it, and no gradient.
    tensors = 1 + slots_of(plan.optimizer)
    seconds = SHARE * CPU_S_PER_BYTE * weights * tensors
    step_s = plan.predicted.seconds if plan.predicted else LEAST_S
    return max(1, math.ceil(max(LEAST_S, seconds) / max(step_s, 1e-6)))
