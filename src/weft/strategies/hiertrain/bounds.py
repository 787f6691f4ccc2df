"""Seconds that a split takes at least, without a program or a simulation.

    bounds = SplitBounds(task, codecs)
    bounds.at_least(split)

No step is shorter than the work of its busiest device, and none is shorter than the time that its busiest
channel is occupied by samples, activations, gradients and weights.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate

from weft.codecs.registry import coded_bytes
from weft.plans.task import Task
from weft.strategies.hiertrain.coding import Codecs
from weft.strategies.hiertrain.splits import Split


class SplitBounds:
    """What the bounds read of a task: prefix sums over layers, and routes."""

    def __init__(self, task: Task, codecs: Codecs) -> None:
        self.task = task
        self.codecs = codecs
        self.layers = len(task.profile.layers)
        self.owners = [owner.device for owner in task.owners] or [task.source]
        self._passes: dict[str, list[float]] = {}
        self._updates: dict[str, list[float]] = {}
        self._rated: dict[Split, float] = {}
        self._weights = [0, *accumulate(layer.param_bytes for layer in task.profile.layers)]

    def at_least(self, split: Split) -> float:
        """Seconds per step, at least; 0 if something else is counted."""
        if not self.task.simulated or self.task.objective != "time":
            return 0.0
        if split not in self._rated:
            self._rated[split] = self._rate(split)
        return self._rated[split]

    def _rate(self, split: Split) -> float:
        busy: defaultdict[str, float] = defaultdict(float)
        crossing: defaultdict[tuple[str, str], float] = defaultdict(float)
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
                crossing[device, o] += size
                crossing[o, device] += size
        return max([*busy.values(), *self._occupied(crossing)])

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
        crossing: defaultdict[tuple[str, str], float],
        owner: str,
        device: str,
        o: str,
        m: int,
        samples: int,
    ) -> None:
        """Counts the bytes of one lane: its samples, and what crosses its cut."""
        profile, codecs = self.task.profile, self.codecs
        raw = profile.activation_bytes(0, samples)
        crossing[owner, device] += coded_bytes(raw, codecs.samples)
        if m < self.layers and device != o:
            there, back = profile.activation_bytes(m, samples), profile.returned_bytes(m, samples)
            crossing[device, o] += coded_bytes(there, codecs.activations)
            crossing[o, device] += coded_bytes(back, codecs.activations)

    def _occupied(self, crossing: defaultdict[tuple[str, str], float]) -> list[float]:
        taken: defaultdict[str, float] = defaultdict(float)
        for (source, dest), size in crossing.items():
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
