"""The best blocks for k devices on a shared medium, by dynamic programming over (layer, cut state).

    ways = best_ways(book, Latency(channel))
    ways[0].blocks, ways[0].overlap       # what the event model thinks is fastest

A label says when every device, the medium and the gateway are done with the first m layers, and how the rows
of their output lie (the state). Of the labels of one m and state two are kept: the one whose last
device is done first, and of the others the one whose devices are done first on average. Rounds are no
barriers, so this is not exact; the simulator has the last word on what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.plan.coopai_book import Book, Opened
from weft.plan.coopai_events import Clock, Times
from weft.plan.coopai_geometry import VALUE_BYTES, DenseLayer
from weft.plan.rounds import RoundMode
from weft.plan.slicing import Block

GATEWAY = -1  # the state in which the gateway has everything
KEPT = 2
FAR = 1.3  # a label that is so much later than the best one after as many layers is given up


class Label(NamedTuple):
    times: Times
    state: int
    before: Label | None = None
    block: Block | None = None
    overlap: bool = False
    older: tuple[tuple[str, int], ...] = ()  # values of earlier blocks, and how their rows lie


@dataclass(frozen=True)
class Way:
    """Blocks of all layers; `overlap` says of each whether inner rows are computed first."""

    seconds: float  # by the event model
    blocks: tuple[Block, ...]
    overlap: tuple[bool, ...]


def best_ways(book: Book, clock: Clock, *, overlap: bool = True) -> list[Way]:
    """What is found for each state at the end, the fastest first."""
    search = _Search(book, clock, overlap)
    ways = {(way.blocks, way.overlap): way for way in search.run()}
    return sorted(ways.values(), key=lambda way: way.seconds)


class _Search:
    def __init__(self, book: Book, clock: Clock, overlap: bool) -> None:
        self.book = book
        self.clock = clock
        self.overlap = overlap
        self.geometry = book.geometry
        self.layers = len(self.geometry.layers)
        self.kept: list[dict[int, list[Label]]] = [{} for _ in range(self.layers + 1)]
        self.own = {
            j: book.own_bytes(j).tolist() for j in range(self.layers) if self.geometry.is_rows(j)
        }
        self.seconds: list[list[float]] = book.seconds.tolist()

    def run(self) -> Iterator[Way]:
        self.keep(0, Label(Times((0.0,) * self.book.k), GATEWAY))
        for i in range(self.layers):
            labels = [label for held in self.kept[i].values() for label in held]
            limit = FAR * min(map(self.latest, labels), default=0.0)
            for label in labels:
                if self.latest(label) <= limit:
                    self.extend(i, label)
        for labels in self.kept[self.layers].values():
            for label in labels:
                times = self.gathered(label, self.layers)
                yield _way(label, self.clock.last(times, gathered=True))

    def keep(self, m: int, label: Label) -> None:
        held = self.kept[m].setdefault(label.state, [])
        held.append(label)
        if len(held) > KEPT:
            first, *rest = sorted(held, key=self.latest)
            self.kept[m][label.state] = [first, min(rest, key=self.mean)]

    def latest(self, label: Label) -> float:
        return self.clock.last(label.times, label.state == GATEWAY)

    def mean(self, label: Label) -> float:
        return self.clock.mean(label.times, label.state == GATEWAY)

    def gathered(self, label: Label, m: int) -> Times:
        """With everything at the gateway: devices send what they made of the values that go on."""
        if label.state == GATEWAY:
            return label.times
        return self.clock.gather(label.times, self.own[m - 1][label.state])

    def extend(self, i: int, label: Label) -> None:
        if i in self.book.blocks:
            for j, state, times, split in self.row_blocks(i, label):
                shares = self.book.rows(j, state)
                block = Block((i, j), "rows", shares)
                older = self.older(i, j, label)
                self.keep(j + 1, Label(times, state, label, block, split, older))
                if not split:
                    self.rows_and_data((i, j), label, times, shares)
        times = self.gathered(label, i)
        if isinstance(self.geometry.layers[i], DenseLayer):
            for count in range(1, self.book.k + 1):
                self.dense(i, label, times, count)
        if i > 0:
            self.whole(i, label, times)

    # --- rows -----------------------------------------------------------------------------------

    def row_blocks(self, i: int, label: Label) -> Iterator[tuple[int, int, Times, bool]]:
        """(last layer, state, times, inner rows first?) of every block of rows from layer i on."""
        opened, clock = self.book.blocks[i], self.clock
        older = {name: state for name, state in label.older if name in opened.moved}
        apart = any(state != label.state for state in older.values())
        none = [0.0] * self.book.k
        for n in range(len(opened.alone)):
            for state in range(len(self.book.states)):
                alone = opened.alone[n, state].tolist()
                if label.state == GATEWAY:
                    image = opened.image[n, state].tolist()
                    yield i + n, state, clock.hand_out(label.times, image, alone, i == 0), False
                    continue
                down, up = _moved(opened, n, label.state, older, state)
                waits = opened.waits[n, label.state, state].tolist()
                times = clock.exchange(label.times, up, down, waits, none, alone)
                yield i + n, state, times, False
                if not self.overlap or apart or n >= len(opened.inner):
                    continue
                inner = opened.inner[n, label.state, state].tolist()
                if any(inner):
                    outer = opened.outer[n, label.state, state].tolist()
                    times = clock.exchange(label.times, up, down, waits, inner, outer)
                    yield i + n, state, times, True

    def older(self, i: int, j: int, label: Label) -> tuple[tuple[str, int], ...]:
        """Values that pass a block untouched, and the state in which their rows lie."""
        states = dict(label.older)
        return tuple(
            (name, states.get(name, label.state))
            for name in self.geometry.cuts[j + 1]
            if self.geometry.made[name] < i and label.state != GATEWAY
        )

    def rows_and_data(
        self, rows: tuple[int, int], label: Label, times: Times, shares: tuple[int, ...]
    ) -> None:
        """A fully connected layer on the device's own rows; partial sums go to the gateway."""
        i, j = rows
        dense = self.geometry.layers[j + 1] if j + 1 < self.layers else None
        layer = self.geometry.rows(j)
        assert layer is not None
        if not isinstance(dense, DenseLayer) or dense.flattens != layer.output:
            return
        height = sum(shares)
        work = [s * n / height for s, n in zip(self.seconds[j + 1], shares, strict=True)]
        ready = tuple(t + w for t, w in zip(times.ready, work, strict=True))
        sums = [float(dense.outputs * VALUE_BYTES) if n else 0.0 for n in shares]
        done = self.clock.gather(Times(ready, times.free, times.gateway), sums)
        self.keep(j + 2, Label(done, GATEWAY, label, Block((i, j + 1), "rows+data", shares)))

    # --- what the gateway gives and takes as a whole --------------------------------------------

    def dense(self, i: int, label: Label, times: Times, count: int) -> None:
        """Fully connected layers on the first `count` devices, in every mode."""
        layer = self.geometry.layers[i]
        assert isinstance(layer, DenseLayer)
        inputs, outputs = layer.inputs * VALUE_BYTES, layer.outputs * VALUE_BYTES
        work = self.seconds[i]
        ways: list[tuple[RoundMode, int, float, float, list[float], int]] = [
            ("model", i, inputs, outputs / count, work, layer.outputs),
            ("data", i, inputs / count, outputs, work, layer.inputs),
        ]
        after = self.geometry.layers[i + 1] if i + 1 < self.layers else None
        if isinstance(after, DenseLayer) and after.inputs == layer.outputs:
            both = [a + b for a, b in zip(work, self.seconds[i + 1], strict=True)]
            out = after.outputs * VALUE_BYTES
            ways.append(("hybrid", i + 1, inputs, out, both, layer.outputs))
        for mode, j, down, up, seconds, places in ways:
            shares = _units(places, seconds, count)
            if shares is None:
                continue
            busy = [float(share > 0) for share in shares]
            spent = [s * n / places for s, n in zip(seconds, shares, strict=True)]
            done = self.clock.hand_out(times, [down * b for b in busy], spent, False)
            done = self.clock.gather(done, [up * b for b in busy])
            self.keep(j + 1, Label(done, GATEWAY, label, Block((i, j), mode, shares)))

    def whole(self, i: int, label: Label, times: Times) -> None:
        """All of layers i..j on the first device, which is the fastest."""
        sizes, cuts, k = self.geometry.sizes, self.geometry.cuts, self.book.k
        idle = (0.0,) * (k - 1)
        enters = float(sum(sizes[name] for name in cuts[i]) * VALUE_BYTES)
        before = self.geometry.rows(i - 1)
        if label.state != GATEWAY and before is not None and not before.after:
            has, *others = self.own[i - 1][label.state]  # the others send it theirs
            times = self.clock.exchange(
                label.times,
                (0.0, *others),
                (enters - has, *idle),
                (k - 1,) * k,
                (0.0,) * k,
                (0.0,) * k,
            )
        else:
            times = self.clock.hand_out(times, (enters, *idle), (0.0,) * k, False)
        seconds = 0.0
        for j in range(i, self.layers):
            seconds += self.seconds[j][0]
            leaves = float(sum(sizes[name] for name in cuts[j + 1]) * VALUE_BYTES)
            ready = (times.ready[0] + seconds, *times.ready[1:])
            done = self.clock.gather(Times(ready, times.free, times.gateway), (leaves, *idle))
            block = Block((i, j), "whole", (1, *(0,) * (k - 1)))
            self.keep(j + 1, Label(done, GATEWAY, label, block))


def _moved(
    opened: Opened, n: int, before: int, older: dict[str, int], state: int
) -> tuple[list[float], list[float]]:
    """Bytes that every device lacks, and bytes that it has and others lack, over all values."""
    down, up = np.zeros((2, opened.alone.shape[2]))
    for name, (downs, ups) in opened.moved.items():
        lay = older.get(name, before)
        down += downs[n, lay, state]
        up += ups[n, lay, state]
    return down.tolist(), up.tolist()


def _units(places: int, seconds: list[float], count: int) -> tuple[int, ...] | None:
    """Units of the first `count` devices in proportion to speed; None: one would have none."""
    speeds = [1 / s if s else 1.0 for s in seconds[:count]]
    ends = [round(places * sum(speeds[: d + 1]) / sum(speeds)) for d in range(count)]
    shares = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    return (*shares, *(0,) * (len(seconds) - count)) if min(shares) > 0 else None


def _way(label: Label, seconds: float) -> Way:
    found: list[tuple[Block, bool]] = []
    step: Label | None = label
    while step is not None and step.block is not None:
        found.append((step.block, step.overlap))
        step = step.before
    blocks, overlap = zip(*reversed(found), strict=True)
    return Way(seconds, tuple(blocks), tuple(overlap))
