"""The rows of every block of convolutions, for every number of devices at once: CoopAI's arithmetic.

    work = row_work(geometry, devices=10)
    work.flops[i, j]        # of layers i..j: one number per device of every k (columns)

For a block i..j every device makes an even share of the rows of layer j's output. The rows of the block's
inputs that it needs (need_d) follow backwards through the windows; they end at the borders. The device
already has its even share of the block before (own_d). It fetches the rest of need_d, and it gives others
what they need of own_d. A row that several of them need is sent once.

All computations are on whole arrays: one walk backwards over the layers serves all last layers j.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.graph.operators.rows import Rule
from weft.strategies.coopai.geometry import Geometry, RowLayer

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Span = tuple[Ints, Ints]  # first rows and ends; empty if the end is not larger
NONE = 1 << 40  # (NONE, -NONE) is an empty span: joined with another span it changes nothing


@dataclass(frozen=True)
class Columns:
    """One column for every device of several groups. Each group shares out rows in its own way."""

    sizes: tuple[int, ...]  # devices of every group
    shares: Callable[[int], Span]  # the rows of each column for a map of this height

    @cached_property
    def group(self) -> Ints:
        """The group of every column."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def starts(self) -> Ints:
        """The first column of every group."""
        first_columns: Ints = np.cumsum(self.sizes, dtype=int) - np.array(self.sizes, dtype=int)
        return first_columns

    def __len__(self) -> int:
        return sum(self.sizes)

    def of(self, group: int) -> slice:
        """The columns of a group."""
        begin = int(self.starts[group])
        return slice(begin, begin + self.sizes[group])


def even_columns(most: int) -> Columns:
    """Even shares for every k from 2 up. Rows that are left over go to the last devices."""
    sizes = tuple(range(2, most + 1))
    k = np.repeat(np.array(sizes, dtype=int), sizes)
    place = np.array([d for size in sizes for d in range(size)], dtype=int)

    def shares(height: int) -> Span:
        each, over = height // k, height % k
        first = place * each + np.maximum(place - (k - over), 0)
        end = (place + 1) * each + np.maximum(place + 1 - (k - over), 0)
        return first, end

    return Columns(sizes, shares)


@dataclass(frozen=True)
class RowWork:
    """For blocks i..j (the first two dimensions), by column. Numbers are counted, not bytes."""

    columns: Columns
    flops: Floats  # nan if layers i..j are no block of rows
    # Numbers that a device gets before it begins, and those that it sends for others.
    fetched: Floats
    sent: Floats  # numbers that it sends at the end of the block


def row_work(geometry: Geometry, devices: int) -> RowWork:
    """What each device computes, fetches and sends in every block of rows."""
    walk = RowWalk(geometry, even_columns(devices))
    layers, columns = walk.shape
    flops = np.full((layers, layers, columns), np.nan)
    fetched, sent = np.zeros_like(flops), np.zeros_like(flops)
    for i, reach in walk.back():
        flops[i, i : reach + 1] = walk.spent[i : reach + 1]
        fetched[i, i : reach + 1] = walk.fetched(i)[: reach + 1 - i]
    for j in range(layers):
        walk.add_sent(sent[:, j], j)
    return RowWork(walk.columns, flops, fetched, sent)


class Backwards:
    """From rows of outputs to rows of inputs.

    Row j of every array is for blocks that end with layer `base` + j. `cost` is the cost of a FLOP by layer
    (from `base` on) and by column.
    """

    def __init__(self, geometry: Geometry, cost: Floats, base: int = 0) -> None:
        self.geometry = geometry
        self.base = base
        self.shape = cost.shape
        self.cost = cost
        self.spent = np.zeros(self.shape)
        self.first: dict[str, Ints] = {}
        self.end: dict[str, Ints] = {}

    def height(self, name: str) -> int:
        """The number of rows of a value."""
        return self.geometry.heights[name]

    def widen(self, name: str, begin: int, end: int, rows: Span) -> None:
        """Add rows to those that blocks `begin` to `end` need of a value."""
        if name not in self.first:
            self.first[name] = np.full(self.shape, NONE)
            self.end[name] = np.full(self.shape, -NONE)
        self.first[name][begin:end] = np.minimum(self.first[name][begin:end], rows[0])
        self.end[name][begin:end] = np.maximum(self.end[name][begin:end], rows[1])

    def through(self, i: int, layer: RowLayer) -> None:
        """Go through the operators of layer i, for all blocks that end with it or later."""
        i -= self.base
        for step in reversed(layer.steps):
            if step.out not in self.first:
                continue  # no block needs it
            rows = self.first[step.out][i:], self.end[step.out][i:]
            if step.flops:
                self.spent[i:] += step.flops * count(rows) * self.cost[i]
            for name in step.reads:
                self.widen(name, i, self.shape[0], under(step.rule, rows, self.height(name)))
            for name in step.whole:
                self.widen(name, i, self.shape[0], everything(rows, self.height(name)))


class RowWalk(Backwards):
    """The walk over all blocks: every device makes its share of the rows of a block's output."""

    def __init__(self, geometry: Geometry, columns: Columns, cost: Floats | None = None) -> None:
        shape = (len(geometry.layers), len(columns))
        super().__init__(geometry, np.ones(shape) if cost is None else cost)
        self.columns = columns
        self.own: dict[str, Span] = {}
        for layer in geometry.layers:
            if isinstance(layer, RowLayer):
                self.own.update(self.own_rows(layer))

    def back(self, longest: int | None = None) -> Iterator[tuple[int, int]]:
        """For every first layer i, from the last one back: i, and the last layer of the longest block from i.

        A block has at most `longest` layers. While a pair is given, `spent` and the spans are those of the
        blocks that begin with i.
        """
        reach = -1
        for i in reversed(range(self.shape[0])):
            layer = self.geometry.rows(i)
            if layer is None:
                reach = -1
                continue
            reach = i if layer.after or reach < 0 else reach
            self.begin(i, layer)
            self.through(i, layer)
            yield i, reach if longest is None else min(reach, i + longest - 1)

    def own_rows(self, layer: RowLayer) -> dict[str, Span]:
        """The rows of the layer's values that a device has after it made its share of the output."""
        rows_of = {layer.output: self.columns.shares(self.height(layer.output))}
        for step in reversed(layer.steps):
            rows = rows_of.setdefault(step.out, self.columns.shares(self.height(step.out)))
            for name in step.reads:
                rows_of[name] = under(step.rule, rows, self.height(name))
            for name in step.whole:
                rows_of[name] = everything(rows, self.height(name))
        made = {step.out for step in layer.steps}
        return {name: rows for name, rows in rows_of.items() if name in made}

    def begin(self, i: int, layer: RowLayer) -> None:
        """Add the rows that layer i must make: if a block ends here, or if a value is needed later."""
        self.widen(layer.output, i, i + 1, self.own[layer.output])
        for step in layer.steps:
            beyond = [j for j in range(i, self.shape[0]) if step.out in self.geometry.cuts[j + 1]]
            if beyond:
                self.widen(step.out, i, beyond[-1] + 1, self.own[step.out])

    def fetched(self, i: int) -> Floats:
        """Numbers that are sent before blocks that begin with layer i, by last layer."""
        numbers = np.zeros((self.shape[0] - i, self.shape[1]))
        for name in self.geometry.cuts[i]:
            inside = name in self.geometry.taps and i not in self.geometry.read[name]
            if name not in self.first or inside:
                continue
            need = self.first[name][i:], self.end[name][i:]
            rows = count(need)
            if name in self.own and name not in self.geometry.relayed:
                own = self.own[name]
                rows = rows - count(both(need, own))
                rows += wanted_by_others(need, own, self.height(name), self.columns)
            numbers += rows * self.geometry.widths[name]
        return numbers

    def add_sent(self, sent: Floats, j: int) -> None:
        """Add the rows that are sent to the gateway when a block ends with layer j; `sent` is by i."""
        layer, geometry = self.geometry.rows(j), self.geometry
        if layer is None:
            return
        crossing = [name for name in geometry.cuts[j + 1] if name in self.own]
        if geometry.is_rows(j + 1) and not layer.after:
            crossing = [name for name in crossing if name in geometry.relayed]
        else:
            crossing = list(dict.fromkeys([layer.output, *crossing]))
        for name in crossing:
            rows = count(self.own[name]) * geometry.widths[name]
            sent[: geometry.made[name] + 1] += rows


def count(rows: Span) -> Ints:
    """The number of rows in a span."""
    rows_count: Ints = np.maximum(rows[1] - rows[0], 0)
    return rows_count


def both(one: Span, other: Span) -> Span:
    """The rows that two spans share."""
    return np.maximum(one[0], other[0]), np.minimum(one[1], other[1])


def under(rule: Rule, rows: Span, height: int) -> Span:
    """The rows of an operator's input that some rows of its output need."""
    if rule.row_by_row:
        return rows
    first, end = rows
    some = end > first
    top, bottom = (first, end - 1) if rule.repeat == 1 else (
        first // rule.repeat, (end - 1) // rule.repeat)  # fmt: skip
    begin = np.maximum(top * rule.stride - rule.above, 0)
    last = np.minimum(bottom * rule.stride - rule.above + rule.reach, height)
    some = some & (last > begin)
    return np.where(some, begin, NONE), np.where(some, last, -NONE)


def everything(rows: Span, height: int) -> Span:
    """All rows of a value, if any row of another one is made; else none."""
    some = rows[1] > rows[0]
    return np.where(some, 0, NONE), np.where(some, height, -NONE)


def wanted_by_others(need: Span, own: Span, height: int, columns: Columns) -> Ints:
    """The number of rows of own_d that at least one other device needs.

    It is the number of rows that anybody needs, without those that only d needs. The devices' needs are in
    order, by their first rows and by their ends. So what only d needs is between the end of the devices
    before it and the first row of the devices after it.
    """
    some = need[1] > need[0]
    # Each group has a range of numbers of its own, so that accumulating never mixes two groups.
    base = columns.group * (height + 2)
    ends = np.maximum.accumulate(np.where(some, need[1], 0) + base, axis=1)
    firsts = np.where(some, need[0], height) + base
    firsts = np.minimum.accumulate(firsts[:, ::-1], axis=1)[:, ::-1]
    before, after = np.zeros_like(ends), np.full_like(firsts, height)
    before[:, 1:] = np.maximum(ends[:, :-1] - base[1:], 0)
    after[:, :-1] = np.minimum(firsts[:, 1:] - base[:-1], height)
    alone = np.maximum(need[0], before), np.minimum(need[1], after)
    sizes = np.array(columns.sizes, dtype=int)
    lowest = np.repeat(firsts[:, columns.starts], sizes, axis=1) - base
    highest = np.repeat(ends[:, columns.starts + sizes - 1], sizes, axis=1) - base
    rows_needed = count(both((lowest, highest), own)) - count(both(alone, own))
    gaps = np.where(some & (before > 0), np.maximum(need[0] - before, 0), 0)
    if gaps.any():
        rows_needed -= _below(own[1], before, gaps, columns) - _below(own[0], before, gaps, columns)
    return rows_needed


def _below(rows: Ints, first: Ints, gaps: Ints, columns: Columns) -> Ints:
    """The number of rows before `rows` in gaps between the needs: windows can leave rows out."""
    rows_in_gaps = np.zeros_like(gaps)
    for group in range(len(columns.sizes)):
        own = columns.of(group)
        reach = rows[own][None, :, None] - first[:, None, own]
        rows_in_gaps[:, own] = np.clip(reach, 0, gaps[:, None, own]).sum(axis=2)
    return rows_in_gaps
