"""Seconds that a split takes at least: three bounds, each better than the one before and each slower.

    bounds = SplitBounds(task, codecs, search.plan)
    bounds.quick(split)
    bounds.at_least(split, enough=0.3)      # stops at the first bound that says 0.3 s or more

1. No step is shorter than the work of its busiest device, with what messages and codecs cost it, and none is
   shorter than the time that its busiest channel is occupied by samples, activations, gradients and weights.
2. All devices wait for the sum of the first layer's gradients, and what must happen between two such sums
   takes its time (`cycle`).
3. The same with the eager order of the passes, which needs the plan's pieces but no program.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate

from weft.codecs.registry import CodecName, coded_bytes
from weft.plans.plan import Plan
from weft.plans.profile import messages_cost
from weft.plans.task import Task
from weft.strategies.hiertrain.coding import Codecs
from weft.strategies.hiertrain.cycle import Cycle
from weft.strategies.hiertrain.splits import Split

Crossing = defaultdict[tuple[str, str, CodecName], float]  # bytes by sender, receiver and codec


class SplitBounds:
    """What the bounds read of a task: prefix sums over layers, and routes. `plan` makes a split's plan; it is
    None where pieces wait for each other at norms, and then only the first bound is known."""

    def __init__(
        self, task: Task, codecs: Codecs, plan: Callable[[Split], Plan] | None = None
    ) -> None:
        self.task = task
        self.codecs = codecs
        self.plan = plan
        self.counted = task.simulated and task.objective == "time"
        self.layers = len(task.profile.layers)
        self.owners = [owner.device for owner in task.owners] or [task.source]
        self.cycle = Cycle(task, codecs)
        self._costly = messages_cost(task.profile.devices.values())
        self._passes: dict[str, list[float]] = {}
        self._updates: dict[str, list[float]] = {}
        self._rated: dict[Split, float] = {}
        self._cycles: dict[Split, float] = {}
        self._scheduled: dict[Split, float] = {}
        self._weights = [0, *accumulate(layer.param_bytes for layer in task.profile.layers)]

    def at_least(self, split: Split, enough: float = math.inf) -> float:
        """Seconds per step, at least; 0 if something else is counted. Whoever only asks whether a split takes
        `enough` seconds gets the first bound that says so: the better ones take longer."""
        least = self.quick(split, enough)
        if least >= enough or not self.counted or self.plan is None:
            return least
        if split not in self._scheduled:
            self._scheduled[split] = self.cycle.scheduled(split, self.plan(split))
        return max(least, self._scheduled[split])

    def quick(self, split: Split, enough: float = math.inf) -> float:
        """The same by the bounds that need no order of the passes."""
        if not self.counted:
            return 0.0
        if split not in self._rated:
            self._rated[split] = self._rate(split)
        if self._rated[split] >= enough or self.plan is None:
            return self._rated[split]
        if split not in self._cycles:
            self._cycles[split] = self.cycle.at_least(split)
        return max(self._rated[split], self._cycles[split])

    def _rate(self, split: Split) -> float:
        busy: defaultdict[str, float] = defaultdict(float)
        crossing: Crossing = defaultdict(float)
        o, adds_up = split.o, self._adds_up(split)
        furthest: dict[str, int] = {}
        for device, m, samples, owner in split.lanes(self.layers, self.owners):
            if not samples:
                continue
            busy[device] += samples * self._of(device, m)
            if m < self.layers:
                busy[o] += samples * (self._of(o, self.layers) - self._of(o, m))
            furthest[device] = max(m, furthest.get(device, 0))
            self._samples(crossing, owner, device, o, m, samples)
        for device, m in furthest.items():
            busy[device] += self._update(device, m)
            if device != o and adds_up:
                size = coded_bytes(self._weights[m], self.codecs.weight_gradients)
                crossing[device, o, self.codecs.weight_gradients] += size
                crossing[o, device, self.codecs.weight_gradients] += size
        if self._costly:
            self._messages(busy, crossing, o)
        return max([*busy.values(), *self._occupied(crossing)])

    def _messages(self, busy: defaultdict[str, float], crossing: Crossing, o: str) -> None:
        """Adds what messages and codecs cost the devices, as if all bytes of a kind were one message. The
        sums of gradients that leave o are coded once for all, so they are left out at o."""
        devices, gradients = self.task.profile.devices, self.codecs.weight_gradients
        for (source, dest, codec), size in crossing.items():
            if not size or source == dest:
                continue
            coded_once = source == o and codec == gradients
            busy[source] += devices[source].message(size)
            busy[source] += 0.0 if coded_once else devices[source].encode(size, codec)
            busy[dest] += devices[dest].message(size) + devices[dest].decode(size, codec)

    def _adds_up(self, split: Split) -> bool:
        """Whether o certainly adds up the gradients of all layers: it has samples of its own, and no other
        device with all layers has as many."""
        whole: defaultdict[str, int] = defaultdict(int)
        for device, m, samples, _ in split.lanes(self.layers, self.owners):
            if m == self.layers:
                whole[device] += samples
        own = whole.pop(split.o)
        return own > max(whole.values(), default=0)

    def _samples(
        self,
        crossing: Crossing,
        owner: str,
        device: str,
        o: str,
        m: int,
        samples: int,
    ) -> None:
        """Counts the bytes of one lane: its samples, and what crosses its cut."""
        profile, codecs = self.task.profile, self.codecs
        raw = profile.activation_bytes(0, samples)
        crossing[owner, device, codecs.samples] += coded_bytes(raw, codecs.samples)
        if m < self.layers and device != o:
            there, back = profile.activation_bytes(m, samples), profile.returned_bytes(m, samples)
            crossing[device, o, codecs.activations] += coded_bytes(there, codecs.activations)
            crossing[o, device, codecs.activations] += coded_bytes(back, codecs.activations)

    def _occupied(self, crossing: Crossing) -> list[float]:
        taken: defaultdict[str, float] = defaultdict(float)
        for (source, dest, _), size in crossing.items():
            for hop in self.task.fleet.route(source, dest):
                taken[hop.channel] += size / hop.bytes_per_s
        return list(taken.values())

    def _of(self, device: str, m: int) -> float:
        """Seconds of one sample's first m layers, forward and backward, without the calls' own time."""
        if device not in self._passes:
            times = self.task.profile.devices[device]
            both = zip(times.forward_s, times.backward_s, strict=True)
            self._passes[device] = [0.0, *accumulate(a + b for a, b in both)]
        return self._passes[device][m]

    def _update(self, device: str, m: int) -> float:
        if device not in self._updates:
            times = self.task.profile.devices[device]
            self._updates[device] = [0.0, *accumulate(times.update_s)]
        return self._updates[device][m]
