"""The best blocks for k devices on a shared medium, by dynamic programming over (layer, cut state).

    ways = best_ways(book, Latency(channel))
    ways[0].blocks, ways[0].overlap       # the fastest in the event model

A label says when every device, the medium and the gateway are done with the first m layers, and how the
rows of their output are shared out (the state). For each m and state two labels are kept: the one whose
last device is done first, and of the others the one whose devices are done first on average. Rounds are
no barriers, so the search is not exact. The simulator makes the final choice.

Short blocks are tried first. Longer blocks are tried only if they would be kept when nobody had to wait
for a message. This bound is computed for all labels and states at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.plans.rounds import RoundMode
from weft.strategies.coopai.book import Book
from weft.strategies.coopai.events import Clock, OwnLinks, Times
from weft.strategies.coopai.geometry import VALUE_BYTES, DenseLayer
from weft.strategies.coopai.rows import Floats
from weft.strategies.coopai.slicing import Block

GATEWAY = -1  # the state in which the gateway has everything
FAR = 1.2  # a label that is so much later than the best one after the same layers is dropped


class Label(NamedTuple):
    """A state of the search: what is done, and when everybody is free."""

    times: Times
    state: int
    last: float = 0.0
    mean: float = 0.0
    before: Label | None = None
    block: Block | None = None
    overlap: bool = False
    older: tuple[tuple[str, int], ...] = ()  # values of earlier blocks, and the state of their rows


class _Labels:
    """Labels as arrays, so that bounds can be computed for all of them at once."""

    def __init__(self, labels: list[Label]) -> None:
        self.labels = labels
        self.states = [label.state for label in labels]
        times = [label.times for label in labels]
        self.ready = np.array([t.ready for t in times])[:, None]  # by label, any state, device
        gathered = [max(t.free, t.gateway) for t in times]
        free = gathered if GATEWAY in self.states else [t.free for t in times]
        self.free = np.array(free)[:, None]


@dataclass(frozen=True)
class Way:
    """Blocks of all layers. `overlap` says for each block whether inner rows are computed first."""

    seconds: float  # by the event model
    blocks: tuple[Block, ...]
    overlap: tuple[bool, ...]


def best_ways(book: Book, clock: Clock, *, overlap: bool = True) -> list[Way]:
    """The best way for each state at the end; the fastest comes first."""
    search = _Search(book, clock, overlap)
    ways = {(way.blocks, way.overlap): way for way in search.run()}
    return sorted(ways.values(), key=lambda way: way.seconds)


class _Search:
    """The labels so far, by the number of layers done."""

    def __init__(self, book: Book, clock: Clock, overlap: bool) -> None:
        self.book, self.clock, self.overlap = book, clock, overlap
        self.geometry, self.k = book.geometry, book.k
        self.layers = len(self.geometry.layers)
        self.kept: list[dict[int, list[Label]]] = [{} for _ in range(self.layers + 1)]
        self.own = {
            j: book.own_bytes(j).tolist() for j in range(self.layers) if self.geometry.is_rows(j)
        }
        self.seconds: list[list[float]] = book.seconds.tolist()
        self.air: list[float] = book.air.tolist()
        self.labels: list[list[Label]] = []  # by layers done; the earliest comes first
        self.spread: list[_Labels] = []  # those of them whose rows are on the devices
        self.central: list[_Labels] = []  # those of them where the gateway has everything
        # The best ones after everything was sent to the gateway.
        self.gathered: list[list[Label]] = []
        # The best one after everything was sent to the first device.
        self.alone: list[Label | None] = []

    def run(self) -> Iterator[Way]:
        """Search, and give the best way of each state at the end."""
        self.close([Label(Times((0.0,) * self.k), GATEWAY)])
        for m in range(1, self.layers + 1):
            for i in self.begins(m):
                if self.book.reaches(i, m - 1):
                    self.rows(i, m)
                if m > 1 and self.book.reaches(i, m - 2):
                    self.rows_and_data(i, m)
                if i + 2 >= m:
                    self.dense(i, m)
                self.whole(i, m)
                if self.clock.seat is not None:
                    self.whole_at_gateway(i, m)
            self.close([label for held in self.kept[m].values() for label in held])
        for label in self.labels[self.layers]:
            yield _way(label, self.clock.last(self.gather(label, self.layers), gathered=True))

    def begins(self, m: int) -> Iterator[int]:
        """The first layers of blocks that end before layer m; the shortest block comes first.

        The last block may begin at any layer: one device then computes all remaining layers.
        """
        for i in reversed(range(m)):
            if m - i <= self.book.longest or m == self.layers:
                yield i

    def close(self, labels: list[Label]) -> None:
        """All labels after so many layers are known. Keep those that are worth going on from."""
        m = len(self.labels)
        labels.sort(key=lambda label: label.last)
        labels = [label for label in labels if label.last <= FAR * labels[0].last]
        self.labels.append(labels)
        self.spread.append(_Labels([label for label in labels if label.state != GATEWAY]))
        self.central.append(_Labels([label for label in labels if label.state == GATEWAY]))
        there = [label._replace(times=self.gather(label, m)) for label in labels]
        there.sort(key=lambda label: self.clock.last(label.times, gathered=True))
        self.gathered.append(there[:2])
        first = m == 0 and self.geometry.is_rows(0)  # no device has anything yet
        self.alone.append(None if first or m == self.layers else self.at_first(m))

    def keep(self, m: int, made: Label) -> None:
        """Keep a label if it is one of the two best; its `last` and `mean` are computed here."""
        gathered = made.state == GATEWAY
        last, mean = self.clock.last(made.times, gathered), self.clock.mean(made.times, gathered)
        held = self.kept[m].setdefault(made.state, [])
        if held and last >= held[0].last and len(held) > 1 and mean >= held[1].mean:
            return
        held.append(made._replace(last=last, mean=mean))
        first, *rest = sorted(held, key=lambda label: label.last)
        self.kept[m][made.state] = [first, *sorted(rest, key=lambda label: label.mean)[:1]]

    def gather(self, label: Label, m: int) -> Times:
        """The times after devices sent the gateway what they made of the values that are needed later."""
        if label.state == GATEWAY:
            return label.times
        return self.clock.gather(label.times, self.own[m - 1][label.state])

    # --- rows -----------------------------------------------------------------------------------

    def rows(self, i: int, m: int) -> None:
        """Layers i to m - 1 as a block of rows."""
        opened, n = self.book.blocks[i], m - 1 - i
        for label, state, times in self.begun(i, n, m, opened.alone[n]):
            self.keep_rows(i, m, label, times, state, False)
        spread = self.spread[i]
        if not self.overlap or not spread.labels or n >= len(opened.inner):
            return
        inner, outer, queue = (x[n] for x in (opened.inner, opened.outer, opened.queue))
        before = spread.states
        for label, state in self.hopeful(m, spread, queue[before], inner[before], outer[before]):
            at = label.state, state
            apart = any(lay != at[0] for name, lay in label.older if name in opened.moved)
            if not apart and inner[at].any():
                times = self.exchange(i, n, label, state, inner[at].tolist(), outer[at].tolist())
                self.keep_rows(i, m, label, times, state, True)

    def begun(
        self, i: int, n: int, m: int, spent: Floats, gathers: bool = False
    ) -> Iterator[tuple[Label, int, Times]]:
        """(label, state, times) of blocks that begin with layer i, have n more layers and take `spent`."""
        opened, none = self.book.blocks[i], np.zeros(self.k)
        queue = np.cumsum(opened.image[n], axis=-1)
        for label, state in self.hopeful(m, self.central[i], queue, none, spent, gathers):
            image = opened.image[n, state].tolist()
            done = self.clock.hand_out(label.times, image, spent[state].tolist(), i == 0)
            yield label, state, done
        spread = self.spread[i]
        queue = opened.queue[n, spread.states] if spread.labels else queue
        for label, state in self.hopeful(m, spread, queue, none, spent, gathers):
            done = self.exchange(i, n, label, state, none.tolist(), spent[state].tolist())
            yield label, state, done

    def hopeful(
        self, m: int, begin: _Labels, queue: Floats, inner: Floats, outer: Floats,
        gathers: bool = False,
    ) -> Iterator[tuple[Label, int]]:  # fmt: skip
        """Labels and states of blocks that may be kept, by a lower bound of their times."""
        if not begin.labels:
            return
        bound = self.clock.bound(begin.ready, begin.free, queue, inner, outer)
        last, mean = (bounds.tolist() for bounds in bound)
        for n, label in enumerate(begin.labels):
            for state in range(len(self.book.states)):
                held = self.kept[m].get(GATEWAY if gathers else state, ())
                if len(held) < 2 or last[n][state] < held[0].last or mean[n][state] < held[1].mean:
                    yield label, state

    def exchange(
        self, i: int, n: int, label: Label, state: int, inner: list[float], outer: list[float]
    ) -> Times:
        """The times after an exchange; older values are where their label says."""
        opened, at = self.book.blocks[i], (n, label.state, state)
        down, up = opened.down[at], opened.up[at]
        for name, before in label.older:
            if before != label.state and name in opened.moved:
                downs, ups = opened.moved[name]
                down = down + downs[n, before, state] - downs[at]
                up = up + ups[n, before, state] - ups[at]
        waits = opened.waits[at].tolist()
        return self.clock.exchange(label.times, up.tolist(), down.tolist(), waits, inner, outer)

    def keep_rows(
        self, i: int, m: int, label: Label, times: Times, state: int, split: bool
    ) -> None:
        """Keep the label after a block of rows, with the states of older values that are still needed."""
        block = Block((i, m - 1), "rows", self.book.rows(m - 1, state))
        lies = dict(label.older)
        older = tuple(
            (name, lies.get(name, label.state))
            for name in self.geometry.cuts[m]
            if self.geometry.made[name] < i and label.state != GATEWAY
        )
        self.keep(m, Label(times, state, 0.0, 0.0, label, block, split, older))

    def rows_and_data(self, i: int, m: int) -> None:
        """A fully connected layer on a device's own rows; the partial sums are sent to the gateway."""
        dense, layer = self.geometry.layers[m - 1], self.geometry.rows(m - 2)
        if not isinstance(dense, DenseLayer) or not layer or dense.flattens != layer.output:
            return
        n = m - 2 - i
        rows = np.array([self.book.rows(m - 2, state) for state in range(len(self.book.states))])
        work = self.book.seconds[m - 1] * rows / rows.sum(axis=1, keepdims=True)
        spent = self.book.blocks[i].alone[n] + work
        for label, state, times in self.begun(i, n, m, spent, gathers=True):
            shares = self.book.rows(m - 2, state)
            size = dense.outputs * VALUE_BYTES
            sums = [size * air if n else 0.0 for n, air in zip(shares, self.air, strict=True)]
            block = Block((i, m - 1), "rows+data", shares)
            done = self.clock.gather(times, sums)
            self.keep(m, Label(done, GATEWAY, before=label, block=block))

    # --- blocks that begin and end with everything at the gateway --------------------------------

    def dense(self, i: int, m: int) -> None:
        """One or two fully connected layers on the first devices, in every mode."""
        layer, last = self.geometry.layers[i], self.geometry.layers[m - 1]
        if not isinstance(layer, DenseLayer) or not isinstance(last, DenseLayer):
            return
        inputs, outputs = layer.inputs * VALUE_BYTES, last.outputs * VALUE_BYTES
        work = [sum(s) for s in zip(*self.seconds[i:m], strict=True)]
        for count in range(1, self.k + 1):
            modes: list[tuple[RoundMode, float, float, int]] = [
                ("model", inputs, outputs / count, layer.outputs),
                ("data", inputs / count, outputs, layer.inputs),
            ]
            if m - i == 2:
                modes = [("hybrid", inputs, outputs, layer.outputs)] * (
                    last.inputs == layer.outputs
                )
            for mode, down, up, places in modes:
                some = self.air[:count]
                sent = (down + up) * (max(some) if isinstance(self.clock, OwnLinks) else sum(some))
                least = self.earliest(i) + sent * self.clock.channel.byte_s
                shares = _units(places, work, count) if self.may_keep(m, least) else None
                if shares is None:
                    continue
                busy = [(n > 0) * air for n, air in zip(shares, self.air, strict=True)]
                spent = [s * n / places for s, n in zip(work, shares, strict=True)]
                for label in self.gathered[i]:
                    times = self.clock.hand_out(label.times, [down * b for b in busy], spent, False)
                    times = self.clock.gather(times, [up * b for b in busy])
                    block = Block((i, m - 1), mode, shares)
                    self.keep(m, Label(times, GATEWAY, before=label, block=block))

    def earliest(self, i: int) -> float:
        """The earliest second when the gateway can send."""
        return min(max(label.times.free, label.times.gateway) for label in self.gathered[i])

    def may_keep(self, m: int, least: float) -> bool:
        """Whether a label whose values are at the gateway no earlier than `least` could be kept."""
        held = self.kept[m].get(GATEWAY, ())
        return len(held) < 2 or least < max(held[0].last, held[1].mean)

    def at_first(self, i: int) -> Label:
        """The best label after everything that is needed later was sent to the first device, the fastest."""
        sizes, k = self.geometry.sizes, self.k
        idle, none = (0.0,) * (k - 1), (0.0,) * k
        enters = float(sum(sizes[name] for name in self.geometry.cuts[i]) * VALUE_BYTES)
        before = self.geometry.rows(i - 1) if i else None
        labels = [
            label._replace(times=self.clock.hand_out(label.times, (enters, *idle), none, False))
            for label in self.gathered[i]
        ]
        for label in self.labels[i] if before is not None and not before.after else ():
            if label.state != GATEWAY:
                has, *others = self.own[i - 1][label.state]  # the others send their rows
                times = self.clock.exchange(
                    label.times, (0.0, *others), (enters - has, *idle), (k - 1,) * k, none, none
                )
                labels.append(label._replace(times=times))
        return min(labels, key=lambda label: label.times.ready[0])

    def whole(self, i: int, m: int) -> None:
        """Layers i to m - 1 whole on the first device."""
        label = self.alone[i]
        if label is None:
            return
        first, *others = label.times.ready
        ready = (first + sum(s[0] for s in self.seconds[i:m]), *others)
        if not self.may_keep(m, ready[0]):
            return
        sizes = self.geometry.sizes
        leaves = float(sum(sizes[name] for name in self.geometry.cuts[m]) * VALUE_BYTES)
        times = self.clock.gather(
            label.times._replace(ready=ready), (leaves, *(0.0,) * (self.k - 1))
        )
        block = Block((i, m - 1), "whole", (1, *(0,) * (self.k - 1)))
        self.keep(m, Label(times, GATEWAY, before=label, block=block))

    def whole_at_gateway(self, i: int, m: int) -> None:
        """Layers i to m - 1 whole on the gateway, if it computes too."""
        seat = self.clock.seat
        assert seat is not None
        work = sum(s[seat] for s in self.seconds[i:m])
        for label in self.gathered[i]:
            times = self.clock.alone(label.times, work)
            block = Block((i, m - 1), "whole", tuple(int(d == seat) for d in range(self.k)))
            self.keep(m, Label(times, GATEWAY, before=label, block=block))


def _units(places: int, seconds: list[float], count: int) -> tuple[int, ...] | None:
    """Units of the first `count` devices in proportion to speed; None if one of them would have none."""
    speeds = [1 / s if s else 1.0 for s in seconds[:count]]
    ends = [round(places * sum(speeds[: d + 1]) / sum(speeds)) for d in range(count)]
    shares = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    return (*shares, *(0,) * (len(seconds) - count)) if min(shares) > 0 else None


def _way(label: Label, seconds: float) -> Way:
    steps: list[tuple[Block, bool]] = []
    step: Label | None = label
    while step is not None and step.block is not None:
        steps.append((step.block, step.overlap))
        step = step.before
    blocks, overlap = zip(*reversed(steps), strict=True)
    return Way(seconds, tuple(blocks), tuple(overlap))
