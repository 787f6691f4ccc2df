"""Cost tables for the search: compute time and bytes of each block of rows on k unequal devices,
for every way of sharing the rows in the block before it.

    book = Book(geometry, states, seconds)
    book.opened(3).down[j - 3, a, b]      # bytes that each device fetches for layers 3..j

Rows are shared out in one of several ways, the cut states: a weight for each device. What a block computes
depends on its own state b. What it fetches also depends on the state a of the block before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.graph.operators.rows import Rule
from weft.strategies.coopai.geometry import VALUE_BYTES, Geometry
from weft.strategies.coopai.rows import (
    NONE,
    Backwards,
    Columns,
    Floats,
    Ints,
    RowWalk,
    Span,
    both,
    count,
    wanted_by_others,
)

Weights = tuple[float, ...]  # of every device: its part of the rows, in proportion
FREE = 1e-9  # the cost of a byte that the gateway takes from itself: nearly nothing, but not 0
DEEP = 40  # layers; in a deeper network blocks are shorter, so that planning does not take long
SHORTEST = 12  # a block may always have so many layers
LONGEST_SPLIT = 6  # inner rows are computed first only in blocks of at most so many layers


@dataclass(frozen=True)
class Opened:
    """The tables of all blocks that begin with one layer: by last layer, by states, by device."""

    alone: Floats  # seconds of all rows at once, by (last, state)
    image: Floats  # bytes of everything that a device needs, by (last, state)
    # By value: bytes that a device lacks, and bytes that it has and others lack. Both are by
    # (last, state in which the value's rows were made, state).
    moved: dict[str, tuple[Floats, Floats]]
    down: Floats  # bytes that a device lacks: the sum over all values
    up: Floats  # bytes that others lack: the sum over all values
    waits: Ints  # the last device whose rows it lacks; -1 if none
    queue: Floats  # bytes that cross the medium before a device has what it lacks; -inf if it lacks nothing
    inner: Floats  # seconds of the rows for which it has everything
    outer: Floats  # seconds of the other rows, which are computed after them


class Book:
    """The tables of all blocks.

    `seconds`: of every layer on every device. `seat`: the gateway's place among the devices if it computes
    too; it sends nothing to itself. `air`: the cost of a byte on the way to each device, compared with a byte
    on the fastest link; empty means that all are equal.
    """

    def __init__(
        self,
        geometry: Geometry,
        states: Sequence[Weights],
        seconds: Floats,
        seat: int | None = None,
        air: Sequence[float] = (),
    ) -> None:
        self.geometry = geometry
        self.seat = seat
        costs = air or (1.0,) * len(states[0])
        self.air = np.array([FREE if d == seat else cost for d, cost in enumerate(costs)])
        self.states = tuple(states)
        self.k = len(states[0])
        self.seconds = seconds
        number, k = len(states), self.k
        flops = np.array([layer.flops or 1.0 for layer in geometry.layers])
        cost = seconds / flops[:, None]
        self._walk = RowWalk(
            geometry, Columns((k,) * number, _shares(states)), np.tile(cost, number)
        )
        before, after = np.divmod(np.arange(number * number), number)
        # Columns of pairs of states.
        self._before = (before[:, None] * k + np.arange(k)).reshape(-1)
        self._after = (after[:, None] * k + np.arange(k)).reshape(-1)
        self._pairs = Columns((k,) * (number * number), self._walk.columns.shares)
        self._pair_cost = np.tile(cost, 3 * number * number)
        self._rows: dict[tuple[int, int], tuple[int, ...]] = {}
        self.blocks: dict[int, Opened] = {}
        self.longest = longest_block(len(geometry.layers))
        for i, reach in self._walk.back(self.longest):
            self.blocks[i] = self._opened(i, reach)

    def reaches(self, first: int, last: int) -> bool:
        """Whether layers first..last can be one block of rows."""
        return first in self.blocks and 0 <= last - first < len(self.blocks[first].alone)

    def rows(self, layer: int, state: int) -> tuple[int, ...]:
        """How many rows of a layer's output each device makes."""
        if (layer, state) not in self._rows:
            row_layer = self.geometry.rows(layer)
            assert row_layer is not None
            own = count(self._walk.own[row_layer.output])[self._walk.columns.of(state)]
            self._rows[layer, state] = tuple(int(n) for n in own)
        return self._rows[layer, state]

    def own_bytes(self, layer: int) -> Floats:
        """Bytes that each device made of the values that are needed after a layer: by (state, device)."""
        row_layer = self.geometry.rows(layer)
        assert row_layer is not None
        names = dict.fromkeys([*self.geometry.cuts[layer + 1], row_layer.output])
        total = np.zeros(len(self.states) * self.k)
        for name in names:
            if name in self._walk.own:
                total += count(self._walk.own[name]) * self.geometry.widths[name]
        own: Floats = total.reshape(-1, self.k) * VALUE_BYTES * self.air
        return own

    def _opened(self, i: int, reach: int) -> Opened:
        walk, ends = self._walk, reach + 1 - i
        image = np.zeros((ends, walk.shape[1]))
        waits = np.full((ends, len(self._after)), -1)
        number, k = len(self.states), self.k
        one, two = (-1, number, k), (-1, number, number, k)
        have: dict[str, Span] = {}
        moved: dict[str, tuple[Floats, Floats]] = {}
        for name in self.geometry.cuts[i]:
            if name not in walk.first:
                continue
            width = self.geometry.widths[name] * VALUE_BYTES
            need = walk.first[name][i : reach + 1], walk.end[name][i : reach + 1]
            image += count(need) * width
            if name not in walk.own:
                continue
            need = need[0][:, self._after], need[1][:, self._after]
            own = walk.own[name][0][self._before], walk.own[name][1][self._before]
            have[name] = own
            lacks = (count(need) - count(both(need, own))) * width
            gives = wanted_by_others(need, own, walk.height(name), self._pairs) * width
            moved[name] = lacks.reshape(two) * self.air, gives.reshape(two) * self.air
            waits = np.maximum(waits, self._waits(need, own))
        last = waits.reshape(two)
        down: Floats = np.zeros(last.shape)
        up: Floats = np.zeros(last.shape)
        for downs, ups in moved.values():
            down += downs
            up += ups
        complete = all(name in have for name in self.geometry.cuts[i] if name in walk.first)
        inner, outer = self._split(i, reach if complete else i - 1, have)
        alone = walk.spent[i : reach + 1].reshape(one).copy()
        return Opened(
            alone, image.reshape(one) * self.air, moved, down, up, last, _queue(down, up, last),
            inner.reshape(two), outer.reshape(two),
        )  # fmt: skip

    def _waits(self, need: Span, own: Span) -> Ints:
        """The last device that made a row which is needed and missing."""
        ends = own[1].reshape(-1, self.k)
        last = np.where(need[1] > own[1], need[1] - 1, np.where(need[0] < own[0], own[0] - 1, -1))
        shape = (last.shape[0], len(ends), self.k)
        at = (ends[None, :, None, :] <= last.reshape(shape)[..., None]).sum(axis=-1)
        waits: Ints = np.where(last < 0, -1, at.reshape(last.shape))
        return waits

    def _split(self, i: int, reach: int, have: dict[str, Span]) -> tuple[Floats, Floats]:
        """Seconds of the inner rows and of the other rows. If there are no inner rows, all rows are other."""
        walk, reach = self._walk, min(reach, i + LONGEST_SPLIT - 1)
        shape = (max(reach + 1 - i, 0), len(self._after))
        inner = [np.full(shape, NONE), np.full(shape, -NONE)]
        whole = [np.full(shape, NONE), np.full(shape, -NONE)]
        for j, rows in _forwards(self.geometry, i, reach, have):
            output = self.geometry.rows(j)
            assert output is not None
            own = walk.own[output.output]
            wanted = own[0][self._after], own[1][self._after]
            possible = both(rows, wanted)
            some = possible[1] > possible[0]
            # Without inner rows: an empty range at the top, so that all rows are below it.
            for n in (0, 1):
                inner[n][j - i] = np.where(some, possible[n], wanted[0])
                whole[n][j - i] = wanted[n]
        first, end = (
            np.concatenate(part, axis=1)
            for part in ((inner[0], whole[0], inner[1]), (inner[1], inner[0], whole[1]))
        )
        spent = self._spent(i, reach, (first, end)).reshape(shape[0], 3, shape[1])
        return spent[:, 0], spent[:, 1] + spent[:, 2]

    def _spent(self, i: int, reach: int, wanted: Span) -> Floats:
        """Seconds of the inner rows, of the rows above them and of the rows below them, side by side."""
        walk = Backwards(self.geometry, self._pair_cost[i : reach + 1], i)
        for q in reversed(range(i, reach + 1)):
            layer = self.geometry.rows(q)
            assert layer is not None
            first, end = wanted[0][q - i], wanted[1][q - i]
            some = end > first
            rows = np.where(some, first, NONE), np.where(some, end, -NONE)
            walk.widen(layer.output, q - i, q - i + 1, rows)
            walk.through(q, layer)
        return walk.spent


def longest_block(layers: int) -> int:
    """The most layers of a block: all layers of the network. In a deep network fewer, so that there are
    about as many blocks as in a network with `DEEP` layers."""
    return layers if layers <= DEEP else max(SHORTEST, DEEP * DEEP // layers)


def _forwards(
    geometry: Geometry, i: int, reach: int, have: dict[str, Span]
) -> Iterator[tuple[int, Span]]:
    """For each last layer: the rows of its output that can be made from the rows at hand."""
    there = dict(have)
    for q in range(i, reach + 1):
        layer = geometry.rows(q)
        assert layer is not None
        for step in layer.steps:
            height = geometry.heights[step.out]
            rows = there[step.reads[0]]
            for n, name in enumerate(step.reads):
                span = _onto(step.rule, there[name], geometry.heights[name], height)
                rows = both(rows, span) if n else span
            for name in step.whole:
                rows = both(rows, _all_there(there[name], geometry.heights[name], height))
            there[step.out] = rows
        yield q, there[layer.output]


def _all_there(rows: Span, height: int, made: int) -> Span:
    """All rows of an output if all rows of a value are there; else none."""
    some = (rows[0] <= 0) & (rows[1] >= height)
    return np.where(some, 0, NONE), np.where(some, made, -NONE)


def _onto(rule: Rule, rows: Span, height: int, made: int) -> Span:
    """The rows of an operator's output whose windows lie within the given rows of its input."""
    if rule.row_by_row:
        return rows
    first, end = rows
    top = np.where(first <= 0, 0, -(-(first + rule.above) // rule.stride) * rule.repeat)
    bottom = ((end + rule.above - rule.reach) // rule.stride + 1) * rule.repeat
    bottom = np.where(end >= height, made, bottom)
    some = (end > first) & (bottom > top)
    return np.where(some, top, NONE), np.where(some, bottom, -NONE)


def _queue(down: Floats, up: Floats, waits: Ints) -> Floats:
    """Bytes that cross the medium before each device is served.

    The gateway serves one device after the other, each after the devices that it waits for have sent.
    """
    sent = np.concatenate([np.zeros((*up.shape[:-1], 1)), np.cumsum(up, axis=-1)], axis=-1)
    lacks = down > 0
    after = np.maximum.accumulate(np.where(lacks, waits, -1), axis=-1)
    before = np.take_along_axis(sent, after + 1, axis=-1)
    return np.where(lacks, before + np.cumsum(down, axis=-1), -np.inf)


def _shares(states: Sequence[Weights]) -> Callable[[int], Span]:
    parts = np.array(states)
    ends = np.cumsum(parts, axis=1) / parts.sum(axis=1, keepdims=True)
    begins = np.concatenate([np.zeros((len(states), 1)), ends[:, :-1]], axis=1)

    def shares(height: int) -> Span:
        first, end = (np.floor(x.reshape(-1) * height + 0.5).astype(int) for x in (begins, ends))
        return first, end

    return shares
