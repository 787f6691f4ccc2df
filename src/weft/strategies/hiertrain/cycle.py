"""Seconds of a split's cycle at least: from one addition of the first layer's gradients to the next.

    cycle = Cycle(task, codecs)
    cycle.at_least(split)

A device updates its layers when all its passes are done, the first layer last. The *root* adds up the
first layer's gradients of all devices that hold this layer, and sends them the sum. No device begins its next
minibatch without that sum, so one minibatch after the other waits there. Between two additions every device

    gets the sum | updates the first layer | gets samples | all forwards | last piece to o and back | backward

of that piece, and sends its gradients to the root. o gets its first piece only when a device has computed
it, and the last piece that leaves o must still be computed backward. None of this depends on the order of
the passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from weft.codecs.registry import CodecName, coded_bytes
from weft.graph.optimizers.words import clips_norm
from weft.plans.plan import Plan
from weft.plans.task import Task
from weft.program.lower.eager import last_backwards
from weft.program.lower.layout import layout_of
from weft.strategies.hiertrain.coding import Codecs
from weft.strategies.hiertrain.splits import Split


class _Lane(NamedTuple):
    """Samples of one owner that a device computes through its first `cut` layers."""

    cut: int
    samples: int
    pieces: int
    owner: str


class _Job(NamedTuple):
    """Work of o: when it can begin, its seconds, and what follows before the next addition."""

    head: float
    work: float
    tail: float


@dataclass(frozen=True)
class _Times:
    """Seconds of a device's first m layers, for every m: per sample, and per call."""

    forward: list[float]
    backward: list[float]
    forward_call: list[float]
    backward_call: list[float]
    update: list[float]

    def there(self, first: int, end: int, samples: int, calls: int) -> float:
        """Forward of layers first..end-1."""
        per, call = self.forward, self.forward_call
        return samples * (per[end] - per[first]) + calls * (call[end] - call[first])

    def back(self, first: int, end: int, samples: int, calls: int) -> float:
        """Backward of layers first..end-1."""
        per, call = self.backward, self.backward_call
        return samples * (per[end] - per[first]) + calls * (call[end] - call[first])


@dataclass(frozen=True)
class _Round:
    """What a split says about the exchange of the first layer's gradients."""

    split: Split
    lanes: dict[str, list[_Lane]]  # of the devices that hold the first layer
    root: str
    starts: tuple[int, ...]  # the first layers of all segments
    weights: tuple[int, ...]  # bytes of each segment's gradients as one message

    def later_updates(self, times: _Times, device: str) -> float:
        """Seconds of the root's updates that come before the one of the first segment."""
        end = len(times.update) - 1 if device == self.split.o else self.lanes[device][0].cut
        return times.update[end] - times.update[min(self.first_end, end)]

    @property
    def first_end(self) -> int:
        """The number of layers in the first segment, if there are several."""
        return self.starts[1] if len(self.starts) > 1 else 1 << 30


class Cycle:
    """The bounds of one task's splits."""

    def __init__(self, task: Task, codecs: Codecs) -> None:
        self.task = task
        self.codecs = codecs
        self.layers = len(task.profile.layers)
        self.owners = [owner.device for owner in task.owners] or [task.source]
        # Where gradients are clipped, every update waits for another exchange.
        self.known = not clips_norm(task.optimizer)
        self._times: dict[str, _Times] = {}
        self._paths: dict[tuple[str, str], tuple[float, float]] = {}
        self._weights: dict[tuple[int, ...], tuple[int, ...]] = {}

    def at_least(self, split: Split) -> float:
        """Seconds from one addition to the next; 0 where nothing is known."""
        return self._seconds(self._round(split)) if self.known else 0.0

    def scheduled(self, split: Split, plan: Plan) -> float:
        """The same by the eager order of the passes, with links free of everything else; 0 where nothing is
        known. It takes a fifth of the time of a price."""
        if not (self.known and split.eager):
            return 0.0
        r = self._round(split)
        begins = {device: self._begin(r, device) for device in r.lanes}
        # A device with work sends its samples when its minibatch begins; one without sends them ahead.
        fed = {owner: begins[owner] for owner in self.owners if owner in begins}
        ends: dict[str, dict[int, float]] = {}  # of the last backward, by device and segment
        for (device, segment), end in last_backwards(layout_of(plan), begins, fed).items():
            ends.setdefault(device, {})[segment] = end
        longest = 0.0
        for device, by_segment in ends.items():
            last = max(by_segment.values())
            if device not in r.lanes:
                longest = max(longest, last)  # o without samples of its own
            elif device == r.root:
                longest = max(longest, last + r.later_updates(self._of(device), device))
            else:
                by_order = [by_segment[g] for g in sorted(by_segment)]
                longest = max(longest, self._given(r, device, by_order))
        return longest

    def _round(self, split: Split) -> _Round:
        size = -(-self.task.batch // min(split.pieces, self.task.batch))
        lanes: dict[str, list[_Lane]] = {}
        order: dict[str, None] = dict.fromkeys(self.owners)  # of the plan's devices
        starts = {0}
        for device, cut, samples, owner in split.lanes(self.layers, self.owners):
            if samples:
                lanes.setdefault(device, []).append(_Lane(cut, samples, -(-samples // size), owner))
                order[device] = None
            if samples and cut < self.layers:
                starts.add(cut)
                order[split.o] = None
        segments = tuple(range(max(starts) + 1)) if split.stream else tuple(sorted(starts))
        # The root is the device with most samples of those that compute the loss, else of all.
        weight = {
            device: (device == split.o or lanes[device][0].cut == self.layers,
                     sum(lane.samples for lane in lanes[device]))
            for device in order if device in lanes
        }  # fmt: skip
        root = max(weight, key=weight.__getitem__)  # the first of equal ones
        return _Round(split, lanes, root, segments, self._messages(segments))

    def _seconds(self, r: _Round) -> float:
        o, longest, jobs = r.split.o, 0.0, []
        begins = {device: self._begin(r, device) for device in r.lanes}
        for device, lanes in r.lanes.items():
            fed = [self._fed(r, device, lane, begins) for lane in lanes]
            begin = max(begins[device], min(first for first, _ in fed))
            if device == o:
                times, samples = self._of(o), sum(lane.samples for lane in lanes)
                pieces = sum(lane.pieces for lane in lanes)
                work = times.there(0, self.layers, samples, pieces)
                work += times.back(0, self.layers, samples, pieces)
                jobs.append(_Job(begin, work, self._end(r, o)))
                continue
            last = max(last for _, last in fed)
            seconds, job = self._device(r, device, begin, last)
            longest = max(longest, seconds)
            if job is not None:
                jobs.append(job)
        return max(longest, _one_after_another(jobs))

    def _device(
        self, r: _Round, device: str, begin: float, last_fed: float
    ) -> tuple[float, _Job | None]:
        """A device's cycle, and what it gives o to do."""
        lanes, o, times = r.lanes[device], r.split.o, self._of(device)
        cut, samples = lanes[0].cut, sum(lane.samples for lane in lanes)
        pieces = sum(lane.pieces for lane in lanes)
        least = min(lane.samples // lane.pieces for lane in lanes)  # the smallest piece
        one = times.there(0, cut, least, 1)
        # When the last piece has been computed forward: not before all of them were.
        forward = all_forward = times.there(0, cut, samples, pieces)
        trip, job = 0.0, None
        if cut < self.layers:
            there, back = self._there(device, o, cut, least), self._back(o, device, cut, least)
            above, rest = self._of(o), self.layers
            trip = there + above.there(cut, rest, least, 1) + above.back(cut, rest, least, 1) + back
            # Nor before all pieces before it have left, or come back.
            all_there = self._there(device, o, cut, samples) - there
            all_back = self._back(o, device, cut, samples) - back
            forward = max(forward, one + all_there, one + all_back)
            work = above.there(cut, rest, samples, pieces) + above.back(cut, rest, samples, pieces)
            after = back + times.back(0, cut, least, 1) + self._end(r, device)
            job = _Job(begin + one + there, work, after)

        def ends(forward: float) -> list[float]:
            """When the last backward of each segment is over, after the device's first forward."""
            return [
                max(
                    all_forward + times.back(start, cut, samples, pieces),
                    forward + trip + times.back(start, cut, least, 1),
                )
                for start in r.starts
                if start < cut
            ]

        fed = ends(max(forward, last_fed - begin + one))
        if device == r.root:
            return begin + fed[0] + r.later_updates(times, device), job
        return max(begin + self._given(r, device, fed), self._summed(r, device, ends(forward))), job

    def _given(self, r: _Round, device: str, ends: list[float]) -> float:
        """When the root has all gradients of a device, which leave it from the last segment to the first."""
        if r.root != r.split.o:
            ends = ends[:1]  # other segments may have other roots
        rate, latency = self._path(device, r.root)
        leaves = 0.0
        for end, weights in zip(reversed(ends), reversed(r.weights[: len(ends)]), strict=True):
            leaves = max(leaves, end) + weights / rate
        return leaves + latency

    def _summed(self, r: _Round, device: str, ends: list[float]) -> float:
        """The seconds from one first sum that a device gets to the next: the gradients of some segments
        leave, then the sums of the last of them and of all segments before it come back."""
        if r.root != r.split.o:
            return 0.0  # other segments may have other roots
        (up, wait_up), (down, wait_down) = self._path(device, r.root), self._path(r.root, device)
        longest = leaves = 0.0
        sums = sum(r.weights[: len(ends)])
        for g in reversed(range(len(ends))):
            leaves = max(leaves, ends[g]) + r.weights[g] / up
            longest = max(longest, leaves + sums / down)
            sums -= r.weights[g]
        return self._first_update(r, device) + longest + wait_up + wait_down

    def _begin(self, r: _Round, device: str) -> float:
        """When a device has updated its first segment, after the root's addition."""
        update = self._first_update(r, device)
        if device == r.root:
            return update
        rate, latency = self._path(r.root, device)
        return r.weights[0] / rate + latency + update

    def _end(self, r: _Round, device: str) -> float:
        """Seconds from a device's last backward to the addition."""
        if device == r.root:
            return r.later_updates(self._of(device), device)
        rate, latency = self._path(device, r.root)
        return r.weights[0] / rate + latency

    def _first_update(self, r: _Round, device: str) -> float:
        end = self.layers if device == r.split.o else r.lanes[device][0].cut
        return self._of(device).update[min(r.first_end, end)]

    def _fed(
        self, r: _Round, device: str, lane: _Lane, begins: dict[str, float]
    ) -> tuple[float, float]:
        """When the first and the last piece of a lane are there. A device with work sends its samples when
        its minibatch begins; one without sends them ahead."""
        begin = begins.get(lane.owner, 0.0)
        if lane.owner == device or lane.owner not in begins:
            return begin, begin
        first, last = (
            begin + self._sent(lane.owner, device, raw, self.codecs.samples)
            for raw in (
                self.task.profile.activation_bytes(0, lane.samples // lane.pieces),
                self.task.profile.activation_bytes(0, lane.samples),
            )
        )
        return first, last

    def _there(self, device: str, o: str, cut: int, samples: int) -> float:
        """Seconds until some samples' activations have arrived at o."""
        size = self.task.profile.activation_bytes(cut, samples)
        return self._sent(device, o, size, self.codecs.activations)

    def _back(self, o: str, device: str, cut: int, samples: int) -> float:
        """Seconds until the gradients of some samples have arrived at the device."""
        size = self.task.profile.returned_bytes(cut, samples)
        return self._sent(o, device, size, self.codecs.activations)

    def _sent(self, source: str, dest: str, raw: int, codec: CodecName) -> float:
        rate, latency = self._path(source, dest)
        return coded_bytes(raw, codec) / rate + latency

    def _messages(self, starts: tuple[int, ...]) -> tuple[int, ...]:
        """Bytes of each segment's gradients as one message."""
        if starts not in self._weights:
            layers, codec = self.task.profile.layers, self.codecs.weight_gradients
            ends = (*starts[1:], self.layers)
            self._weights[starts] = tuple(
                coded_bytes(sum(layer.param_bytes for layer in layers[a:b]), codec)
                for a, b in zip(starts, ends, strict=True)
            )
        return self._weights[starts]

    def _path(self, source: str, dest: str) -> tuple[float, float]:
        """(bytes per second of the slowest hop, latency) from one device to another."""
        if (source, dest) not in self._paths:
            fleet = self.task.fleet
            self._paths[source, dest] = (
                fleet.path_rate(source, dest),
                fleet.path_latency(source, dest),
            )
        return self._paths[source, dest]

    def _of(self, device: str) -> _Times:
        if device not in self._times:
            times, none = self.task.profile.devices[device], (0.0,) * self.layers
            rows = (
                times.forward_s, times.backward_s,
                times.forward_call_s or none, times.backward_call_s or none, times.update_s,
            )  # fmt: skip
            self._times[device] = _Times(*([0.0, *accumulate(row)] for row in rows))
        return self._times[device]


def _one_after_another(jobs: list[_Job]) -> float:
    """The least seconds in which one device can do all these jobs: for any set of them, the first one's head,
    the work of all, the last one's tail."""
    longest = 0.0
    late_first = sorted(jobs, reverse=True)
    for tail in {job.tail for job in jobs}:
        work = 0.0
        for job in late_first:
            if job.tail >= tail:
                work += job.work
                longest = max(longest, job.head + work + tail)
    return longest
