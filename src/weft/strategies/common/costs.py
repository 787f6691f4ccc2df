"""What a minibatch costs on devices and links, before any schedule: the planners' arithmetic.

    costs = Costs(task)
    costs.compute("pi", 0, 2)         # seconds of layers 0..2 on the pi, the whole minibatch
    costs.cross(3, "pi", "cloud")     # seconds of cut 3 there and, in training, its gradients back
    costs.load(3, "pi", "cloud")      # seconds that the busiest channel on that way is taken

`cross` belongs to the serial model of JointDNN: one thing at a time, latency included. `load`
belongs to a full pipeline: everything at once, so that only the time a channel is taken counts.
Labels are a few bytes beside the samples: neither model charges them, unless they are given as `riding`.
"""

from __future__ import annotations

from collections import defaultdict

from weft.codecs.registry import coded_bytes
from weft.plans import options
from weft.plans.task import Task


class Costs:
    """The prices of one task; what a search asks for again and again is computed once."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.train = task.mode == "train"
        self.layers = len(task.profile.layers)
        self._route = options.route(task)
        codec = options.codec(task)
        profile, batch = task.profile, task.batch
        # The samples are sent as they are; a codec works on what the layers make of them.
        self._there = [batch * profile.cut_bytes(0)]
        self._back = [0]
        for m in range(1, self.layers + 1):
            self._there.append(coded_bytes(batch * profile.cut_bytes(m), codec))
            self._back.append(coded_bytes(batch * profile.gradient_bytes(m), codec))
        self._seconds = {name: self._prefix(name) for name in task.fleet.names}
        self._paths: dict[tuple[str, str], tuple[float, float]] = {}
        self._slopes: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
        self._weights = [0]
        for layer in profile.layers:
            self._weights.append(self._weights[-1] + layer.param_bytes)

    def _prefix(self, device: str) -> list[float]:
        """Seconds of the first m layers, the whole minibatch, for every m."""
        times, batch = self.task.profile.devices[device], self.task.batch
        seconds = [0.0]
        for layer in range(self.layers):
            spent = times.forward(layer, layer, batch)
            if self.train:
                spent += times.backward(layer, layer, batch) + times.update(layer, layer)
            seconds.append(seconds[-1] + spent)
        return seconds

    def compute(self, device: str, first: int, last: int) -> float:
        """Seconds of layers first..last (0-based, both included) in one minibatch."""
        seconds = self._seconds[device]
        return seconds[last + 1] - seconds[first]

    def total(self, device: str) -> float:
        """Seconds of the whole network on one device."""
        return self._seconds[device][-1]

    def fits(self, device: str, first: int, last: int) -> bool:
        """Whether the device can hold at least the weights of these layers and their gradients.

        A plan that passes may still be too large; one that fails always is.
        """
        limit = self.task.fleet.device(device).memory_mb
        if limit is None:
            return True
        copies = 2 if self.train else 1
        return copies * (self._weights[last + 1] - self._weights[first]) <= limit * 1e6

    def bytes_over(self, m: int) -> tuple[int, int]:
        """What cut m sends there and, in training, its gradients back; coded."""
        return self._there[m], self._back[m] if self.train else 0

    # The serial model: one thing at a time.

    def send(self, source: str, dest: str, count: int) -> float:
        """Seconds until `count` bytes have arrived; nothing to send takes no time."""
        if source == dest or count == 0:
            return 0.0
        if (source, dest) not in self._paths:
            fleet = self.task.fleet
            rate = fleet.path_rate(source, dest, self._route)
            self._paths[source, dest] = rate, fleet.path_latency(source, dest)
        rate, latency = self._paths[source, dest]
        return count / rate + latency

    def enter(self, device: str) -> float:
        """The samples' way from the source."""
        return self.send(self.task.source, device, self._there[0])

    def cross(self, m: int, before: str, after: str, riding: int = 0) -> float:
        """Cut m's way from one device to the next and, in training, its gradients' way back; `riding`
        bytes go there with it."""
        forward = self.send(before, after, self._there[m] + riding)
        return forward + (self.send(after, before, self._back[m]) if self.train else 0.0)

    def leave(self, device: str) -> float:
        """The answer's way back to the source; training has none."""
        return 0.0 if self.train else self.send(device, self.task.source, self._there[-1])

    # The pipeline model: everything at once, each channel one thing at a time.

    def slopes(self, before: str, after: str) -> dict[str, tuple[float, float]]:
        """By channel: seconds it is taken per byte sent there and per byte sent back."""
        pair = before, after
        if pair not in self._slopes:
            found: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
            for way, (source, dest) in enumerate((pair, (after, before))):
                for hop in self.task.fleet.route(source, dest):
                    found[hop.channel][way] += 1 / hop.bytes_per_s
            self._slopes[pair] = {channel: (a, b) for channel, (a, b) in found.items()}
        return self._slopes[pair]

    def busy(self, m: int, before: str, after: str, riding: int = 0) -> dict[str, float]:
        """Seconds that each channel is taken by cut m and, in training, by its gradients."""
        there, back = self._there[m] + riding, self._back[m] if self.train else 0
        slopes = self.slopes(before, after)
        return {channel: there * a + back * b for channel, (a, b) in slopes.items()}

    def load(self, m: int, before: str, after: str, riding: int = 0) -> float:
        """Seconds that the busiest channel is taken by cut m."""
        return max(self.busy(m, before, after, riding).values(), default=0.0)

    def enter_load(self, device: str) -> float:
        return self.load(0, self.task.source, device)

    def leave_load(self, device: str) -> float:
        return 0.0 if self.train else self.load(self.layers, device, self.task.source)

    def period(self, assignment: tuple[str, ...]) -> float:
        """Seconds per minibatch of an endless full pipeline: the busiest device or channel."""
        taken: defaultdict[str, float] = defaultdict(float)
        ways = [(0, self.task.source, assignment[0])]
        ways += [(m, assignment[m - 1], assignment[m]) for m in range(1, self.layers)]
        if not self.train:
            ways.append((self.layers, assignment[-1], self.task.source))
        for m, before, after in ways:
            for channel, seconds in self.busy(m, before, after).items():
                taken[channel] += seconds
        for layer, device in enumerate(assignment):
            taken[device] += self.compute(device, layer, layer)
        return max(taken.values())
