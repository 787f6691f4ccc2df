"""Seconds that a pipeline takes at least. A candidate whose bound is above the best price need not be priced.

    bounds = Bounds(task, costs)
    bounds.computing(assignment)               # the busiest device alone: cheap
    bounds.at_least(assignment, pieces=4, in_flight=2)

In training the first stage begins a minibatch when its update of the minibatch before is done. So a step
lasts at least, for each stage i,

    forward of the first piece through the stages before i, all passes of stage i,
    backward of the last piece through the stages before i, update of the first stage

With f pieces in flight the first stage waits for piece k's gradient before piece k + f: the step lasts at
least ceil(pieces / f) times as long as one piece needs to the end and back. And no device, and no
channel, does its work of a minibatch faster than it can. An inference is the same with the stages after i in
place of the way back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from weft.codecs.registry import coded_bytes
from weft.plans import options
from weft.plans.task import Task
from weft.program.lower.schedule import micro_sizes
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import runs


class _Stage(NamedTuple):
    """Seconds of one stage: of the first, last and smallest piece, and of all pieces."""

    forward: float  # first piece
    forward_last: float
    backward: float  # last piece, which is also the smallest
    all_passes: float
    update: float


class _Way(NamedTuple):
    """Seconds of the messages before a stage: there with the first and the last piece, back with the last."""

    there: float
    there_last: float
    back: float


class Bounds:
    """The bounds of one task's plans of whole layers, each device at most once."""

    def __init__(self, task: Task, costs: Costs) -> None:
        self.task = task
        self.costs = costs
        self.codec, self.input_codec = options.codec(task), options.input_codec(task)
        self._stages: dict[tuple[str, int, int, int], _Stage] = {}
        self._ways: dict[tuple[int, str, str, int], _Way] = {}
        self._busy: dict[tuple[str, ...], float] = {}

    def computing(self, assignment: tuple[str, ...]) -> float:
        """Seconds of the busiest device. No route is looked up."""
        return max(self.costs.compute(*row) for row in runs(assignment))

    def at_least(self, assignment: tuple[str, ...], pieces: int, in_flight: int) -> float:
        """Seconds per step, or until the answer."""
        if assignment not in self._busy:
            self._busy[assignment] = self._busiest(runs(assignment))
        busiest = self._busy[assignment]
        if self.task.owners:  # each owner's samples are cut into pieces of their own
            return busiest
        rows = runs(assignment)
        stages = [self._stage(*row, pieces) for row in rows]
        ends = [self.task.source, *(device for device, _, _ in rows)]
        ways = [
            self._way(first, before, device, pieces)
            for before, (device, first, _) in zip(ends, rows, strict=False)
        ]
        train = self.task.mode == "train"
        if train and (self.task.source in ends[1:] or options.ahead(self.task, pieces) > 1):
            ways[0] = _Way(0.0, 0.0, 0.0)  # samples are sent while the minibatch before is computed
        if not train:
            ways.append(self._way(self.costs.layers, rows[-1][0], self.task.source, pieces))
        longest, trip = (_training if train else _inference)(stages, ways)
        return max(busiest, longest, -(-pieces // in_flight) * trip)

    def _busiest(self, rows: Sequence[tuple[str, int, int]]) -> float:
        """Seconds of the busiest device, with messages and codecs, and of the busiest channel, however the
        minibatch is cut."""
        taken: defaultdict[str, float] = defaultdict(float)  # by channel
        busy: defaultdict[str, float] = defaultdict(float)  # by device
        ends = [self.task.source, *(device for device, _, _ in rows)]
        crossed = [(first, a, b) for a, (b, first, _) in zip(ends, rows, strict=False)]
        if self.task.mode == "infer":
            crossed.append((self.costs.layers, ends[-1], self.task.source))
        for device, first, last in rows:
            busy[device] += self.costs.compute(device, first, last)
        for cut, before, after in crossed if not self.task.owners else crossed[1:]:
            there, back = self._bytes(cut, self.task.batch)
            codec = self.codec if cut else self.input_codec
            for size, source, dest in ((there, before, after), (back, after, before)):
                if not size or source == dest:
                    continue
                for hop in self.task.fleet.route(source, dest):
                    taken[hop.channel] += size / hop.bytes_per_s
                if self.costs.costly:  # one message at least
                    self.costs.message(busy, source, dest, size, codec)
        return max([*taken.values(), *busy.values()])

    def _bytes(self, cut: int, samples: int) -> tuple[int, int]:
        """Bytes of some samples over a cut, there and (in training) back."""
        profile, codec = self.task.profile, self.codec if cut else self.input_codec
        there = coded_bytes(profile.activation_bytes(cut, samples), codec)
        if self.task.mode == "infer" or not cut:
            return there, 0
        return there, coded_bytes(profile.returned_bytes(cut, samples), codec)

    def _stage(self, device: str, first: int, last: int, pieces: int) -> _Stage:
        key = device, first, last, pieces
        if key not in self._stages:
            times, batch = self.task.profile.devices[device], self.task.batch
            sizes = micro_sizes(batch, pieces)
            most, least = sizes[0], sizes[-1]
            # Seconds are linear in the samples: those of a piece of none are those of a call.
            calls = (pieces - 1) * times.forward(first, last, 0)
            passes = times.forward(first, last, batch) + calls
            backward = update = 0.0
            if self.task.mode == "train":
                passes += times.backward(first, last, batch)
                passes += (pieces - 1) * times.backward(first, last, 0)
                backward = times.backward(first, last, least)
                update = times.update(first, last)
            forward = times.forward(first, last, most), times.forward(first, last, least)
            self._stages[key] = _Stage(*forward, backward, passes, update)
        return self._stages[key]

    def _way(self, cut: int, before: str, after: str, pieces: int) -> _Way:
        key = cut, before, after, pieces
        if key not in self._ways:
            sizes = micro_sizes(self.task.batch, pieces)
            there, _ = self._bytes(cut, sizes[0])
            there_last, back = self._bytes(cut, sizes[-1])
            send, codec = self.costs.send, self.codec if cut else self.input_codec
            self._ways[key] = _Way(
                send(before, after, there, codec),
                send(before, after, there_last, codec),
                send(after, before, back, codec),
            )
        return self._ways[key]


def _training(stages: Sequence[_Stage], ways: Sequence[_Way]) -> tuple[float, float]:
    """The longest stage with the way to it and back; one piece to the end and back."""
    there, back = ways[0].there, stages[0].update
    longest = 0.0
    for number, stage in enumerate(stages):
        if number:
            there += stages[number - 1].forward + ways[number].there
            back += stages[number - 1].backward + ways[number].back
        longest = max(longest, there + stage.all_passes + back)
    trip = sum(stage.forward_last + stage.backward for stage in stages)
    return longest, trip + sum(way.there_last + way.back for way in ways[1:])


def _inference(stages: Sequence[_Stage], ways: Sequence[_Way]) -> tuple[float, float]:
    """The longest stage with the way to it and on to the answer; one piece from the source to the answer."""
    after = sum(stage.forward_last for stage in stages) + sum(way.there_last for way in ways)
    trip, before, longest = after, 0.0, 0.0
    for stage, way in zip(stages, ways, strict=False):
        before += way.there
        after -= way.there_last + stage.forward_last
        longest = max(longest, before + stage.all_passes + after)
        before += stage.forward
    return longest, trip
