"""What a minibatch costs on devices and links, without a schedule. Planners search with these prices.

    costs = Costs(task)
    costs.compute("pi", 0, 2)         # seconds of layers 0..2 on the pi for the whole minibatch
    costs.cross(3, "pi", "cloud")     # seconds to send cut 3 and, in training, to get its gradients back
    costs.load(3, "pi", "cloud")      # seconds that the busiest channel between them is occupied

`cross` is for JointDNN's serial model: one thing happens at a time, and latency counts. `load` is for
a full pipeline: everything happens at once, so only the time that a channel is occupied counts.
Labels are a few bytes beside the samples. Both models leave them out, unless they are passed as `riding`.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from weft.codecs.registry import CodecName, coded_bytes
from weft.plans import options
from weft.plans.places import cut_places
from weft.plans.profile import crowded_s, messages_cost
from weft.plans.task import Task


class Costs:
    """The prices of one task. A price that a search needs again and again is computed once."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.train = task.mode == "train"
        self.layers = len(task.profile.layers)
        self._route = options.route(task)
        codec = self.codec = options.codec(task)
        profile, batch = task.profile, task.batch
        # The codec is for activations and gradients. The samples (cut 0) are not coded here.
        self._there = [batch * profile.cut_bytes(0)]
        self._back = [0]
        for m in range(1, self.layers + 1):
            self._there.append(coded_bytes(batch * profile.cut_bytes(m), codec))
            self._back.append(coded_bytes(batch * profile.gradient_bytes(m), codec))
        self.costly = messages_cost(profile.devices.values())
        self._prefixes: dict[str, list[float]] = {}
        self._paths: dict[tuple[str, str], tuple[float, float]] = {}
        self._slopes: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
        self._stages: dict[str, tuple[NDArray[np.float64], NDArray[np.bool_]]] = {}
        self.places = np.array(cut_places(profile.layers))
        self._weights = [0]
        for layer in profile.layers:
            self._weights.append(self._weights[-1] + layer.param_bytes)

    def _prefix(self, device: str) -> list[float]:
        """Seconds of the first m layers for the whole minibatch, for every m."""
        if device not in self._prefixes:
            self._prefixes[device] = [0.0, *accumulate(self._by_layer(device))]
        return self._prefixes[device]

    def _by_layer(self, device: str) -> list[float]:
        """Seconds of each layer for the whole minibatch."""
        times, batch = self.task.profile.devices[device], self.task.batch
        none = (0.0,) * self.layers
        spent = [
            each * batch + call
            for each, call in zip(times.forward_s, times.forward_call_s or none, strict=True)
        ]
        if not self.train:
            return spent
        backward = zip(times.backward_s, times.backward_call_s or none, times.update_s, strict=True)
        return [
            forward + (each * batch + call + update)
            for forward, (each, call, update) in zip(spent, backward, strict=True)
        ]

    def prefix(self, device: str) -> NDArray[np.float64]:
        """Seconds of the first m layers in one minibatch, for every m."""
        return np.array(self._prefix(device))

    def compute(self, device: str, first: int, last: int) -> float:
        """Seconds of layers first..last (0-based, both included) in one minibatch."""
        seconds = self._prefix(device)
        return seconds[last + 1] - seconds[first]

    def total(self, device: str) -> float:
        """Seconds of the whole network on one device."""
        return self._prefix(device)[-1]

    def fits(self, device: str, first: int, last: int) -> bool:
        """False if the device cannot even hold the weights of these layers and their gradients.

        True does not mean that the plan fits: activations are not counted here.
        """
        limit = self.task.fleet.device(device).memory_mb
        if limit is None:
            return True
        copies = 2 if self.train else 1
        return copies * (self._weights[last + 1] - self._weights[first]) <= limit * 1e6

    def stages(self, device: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """`compute` and `fits` of all stages between two places at once, by the place before a stage and the
        place after it. A stage without layers does not fit."""
        if device not in self._stages:
            seconds = np.array(self._prefix(device))[self.places]
            weights = np.array(self._weights)[self.places]
            limit = self.task.fleet.device(device).memory_mb
            fits = np.triu(np.ones((len(seconds), len(seconds)), np.bool_), 1)
            if limit is not None:
                copies = 2 if self.train else 1
                fits &= copies * (weights[None, :] - weights[:, None]) <= limit * 1e6
            self._stages[device] = seconds[None, :] - seconds[:, None], fits
        return self._stages[device]

    def bytes_over(self, m: int) -> tuple[int, int]:
        """Bytes of cut m forward and, in training, of its gradients back; after coding."""
        return self._there[m], self._back[m] if self.train else 0

    # The serial model: one thing happens at a time.

    def send(self, source: str, dest: str, count: int, codec: CodecName = "none") -> float:
        """Seconds until `count` bytes have arrived, coding included; 0 if there is nothing to send."""
        if source == dest or count == 0:
            return 0.0
        rate, latency = self._path(source, dest)
        ends = self.task.profile.devices[source], self.task.profile.devices[dest]
        seconds = count / rate + latency
        # The work for the bytes is done while the link carries them, unless it takes longer.
        seconds += sum(end.message_s + count * max(0.0, end.byte_s - 1 / rate) for end in ends)
        if codec != "none":
            seconds += ends[0].encode(count, codec) + ends[1].decode(count, codec)
        return seconds

    def enter(self, device: str) -> float:
        """Seconds to send the samples from the source to a device."""
        return self.send(self.task.source, device, self._there[0])

    def cross(self, m: int, before: str, after: str, riding: int = 0) -> float:
        """Seconds to send cut m to the next device and, in training, to get its gradients back.

        `riding` are further bytes that are sent with the cut, such as labels.
        """
        codec = self.codec if m else "none"
        forward = self.send(before, after, self._there[m] + riding, codec)
        return forward + (self.send(after, before, self._back[m], codec) if self.train else 0.0)

    def crossings(self, before: str, after: str) -> NDArray[np.float64]:
        """`cross` of every place where a search may cut."""
        seconds = self._sends(before, after, self._there)
        if self.train:
            seconds = seconds + self._sends(after, before, self._back)
        return np.take(seconds, self.places)

    def ways(self, before: str, after: str) -> NDArray[np.float64]:
        """Seconds to send each cut to the next device; the gradients' way back is not counted."""
        return self._sends(before, after, self._there)

    def _sends(self, source: str, dest: str, counts: list[int]) -> NDArray[np.float64]:
        """`send` of several numbers of bytes."""
        if source == dest:
            return np.zeros(len(counts))
        rate, latency = self._path(source, dest)
        ends = self.task.profile.devices[source], self.task.profile.devices[dest]
        sizes = np.array(counts, dtype=np.float64)
        per_byte = sum(max(0.0, end.byte_s - 1 / rate) for end in ends)
        own = ends[0].message_s + ends[1].message_s + per_byte * sizes
        if self.codec != "none":
            coding = [ends[0].encode(n, self.codec) + ends[1].decode(n, self.codec) for n in counts]
            own = own + np.array([0.0, *coding[1:]])  # samples are not coded here
        return np.where(sizes > 0, sizes / rate + latency + own, 0.0)

    def _path(self, source: str, dest: str) -> tuple[float, float]:
        """(bytes per second, latency) from one device to another."""
        if (source, dest) not in self._paths:
            fleet = self.task.fleet
            rate = fleet.path_rate(source, dest, self._route)
            self._paths[source, dest] = rate, fleet.path_latency(source, dest)
        return self._paths[source, dest]

    def leave(self, device: str) -> float:
        """Seconds to send the answer back to the source; 0 in training."""
        if self.train:
            return 0.0
        return self.send(device, self.task.source, self._there[-1], self.codec)

    # The pipeline model: everything happens at once, but each channel carries one message at a time.

    def slopes(self, before: str, after: str) -> dict[str, tuple[float, float]]:
        """By channel: seconds it is occupied per byte forward and per byte back."""
        pair = before, after
        if pair not in self._slopes:
            per_byte: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
            for way, (source, dest) in enumerate((pair, (after, before))):
                for hop in self.task.fleet.route(source, dest):
                    per_byte[hop.channel][way] += 1 / hop.bytes_per_s
            self._slopes[pair] = {channel: (a, b) for channel, (a, b) in per_byte.items()}
        return self._slopes[pair]

    def busy(self, m: int, before: str, after: str, riding: int = 0) -> dict[str, float]:
        """By channel: seconds it is occupied by cut m and, in training, by its gradients."""
        there, back = self._there[m] + riding, self._back[m] if self.train else 0
        slopes = self.slopes(before, after)
        return {channel: there * a + back * b for channel, (a, b) in slopes.items()}

    def load(self, m: int, before: str, after: str, riding: int = 0) -> float:
        """Seconds that the busiest channel is occupied by cut m."""
        return max(self.busy(m, before, after, riding).values(), default=0.0)

    def loads(self, before: str, after: str) -> NDArray[np.float64]:
        """`load` of every place where a search may cut."""
        there = np.array(self._there, dtype=np.float64)
        back = np.array(self._back if self.train else [0] * len(self._back), dtype=np.float64)
        busiest = np.zeros(len(there))
        for a, b in self.slopes(before, after).values():
            busiest = np.maximum(busiest, there * a + back * b)
        return np.take(busiest, self.places)

    def enter_load(self, device: str) -> float:
        """Seconds that the busiest channel is occupied by the samples on their way to a device."""
        return self.load(0, self.task.source, device)

    def leave_load(self, device: str) -> float:
        """Seconds that the busiest channel is occupied by the answer; 0 in training."""
        return 0.0 if self.train else self.load(self.layers, device, self.task.source)

    def message(
        self, busy: dict[str, float], source: str, dest: str, size: int, codec: CodecName
    ) -> None:
        """Adds what one message costs both ends, its codec included; nothing if there is nothing to send."""
        if size:
            sends, takes = self.task.profile.devices[source], self.task.profile.devices[dest]
            busy[source] += sends.message(size) + sends.encode(size, codec)
            busy[dest] += takes.message(size) + takes.decode(size, codec)

    def period(self, assignment: tuple[str, ...]) -> float:
        """Seconds per minibatch of a full pipeline without end: those of the busiest device or channel."""
        taken: defaultdict[str, float] = defaultdict(float)
        ways = [(0, self.task.source, assignment[0])]
        ways += [(m, assignment[m - 1], assignment[m]) for m in range(1, self.layers)]
        if not self.train:
            ways.append((self.layers, assignment[-1], self.task.source))
        for m, before, after in ways:
            for channel, seconds in self.busy(m, before, after).items():
                taken[channel] += seconds
            if before != after and self.costly:
                there, back = self.bytes_over(m)
                self.message(taken, before, after, there, self.codec if m else "none")
                self.message(taken, after, before, back, self.codec)
        for layer, device in enumerate(assignment):
            taken[device] += self.compute(device, layer, layer)
        devices = self.task.profile.devices
        nodes = {name: seconds for name, seconds in taken.items() if name in devices}
        return max(*taken.values(), crowded_s(devices, nodes))
