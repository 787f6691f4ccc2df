"""Rows of every block of convolutions, for every number of devices at once: CoopAI's arithmetic.

    work = row_work(geometry, devices=10)
    work.flops[i, j]        # of layers i..j: one number per device of every k (columns)

For a block i..j every device makes an even share of the rows of layer j's output. Which rows of the block's
inputs it needs (need_d) follows backwards through the windows, clipped at the borders. It has made the
even share of what came before (own_d), fetches the rest of need_d, and gives others what they need of own_d:
a row that several of them need is sent once.

Only whole arrays are computed with: one walk backwards over the layers treats all ends j together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.graph.rows import Rule
from weft.plan.coopai_geometry import Geometry, RowLayer

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Span = tuple[Ints, Ints]  # first rows and ends; empty where the end is not larger
NONE = 1 << 40  # an empty span is (NONE, -NONE), which widens to nothing


@dataclass(frozen=True)
class Columns:
    """One column for every device of every k in 2..most."""

    most: int

    @cached_property
    def k(self) -> Ints:
        return np.repeat(np.arange(2, self.most + 1), np.arange(2, self.most + 1))

    @cached_property
    def place(self) -> Ints:
        """Which of its k devices each column is."""
        return np.concatenate([[], *(np.arange(k) for k in range(2, self.most + 1))]).astype(int)

    @cached_property
    def sizes(self) -> Ints:
        return np.arange(2, self.most + 1)

    @cached_property
    def starts(self) -> Ints:
        """The first column of every k."""
        return np.cumsum(self.sizes) - self.sizes

    def of(self, k: int) -> slice:
        begin = k * (k - 1) // 2 - 1
        return slice(begin, begin + k)

    def shares(self, height: int) -> Span:
        """Even shares of rows; those that are left over go to the last devices."""
        each, over = height // self.k, height % self.k

        def begin(place: Ints) -> Ints:
            found: Ints = place * each + np.maximum(place - (self.k - over), 0)
            return found

        return begin(self.place), begin(self.place + 1)


@dataclass(frozen=True)
class RowWork:
    """Of blocks i..j (first two dimensions), by column. Numbers, not bytes, cross the network."""

    columns: Columns
    flops: Floats  # nan: layers i..j are no block of rows
    fetched: Floats  # what a device gets before it begins, and what it sends for that
    sent: Floats  # what it sends when it is done


def row_work(geometry: Geometry, devices: int) -> RowWork:
    return _Walk(geometry, Columns(devices)).work()


class _Walk:
    """Backwards over the layers. Row j of `first` and `end` belongs to the blocks that end with j."""

    def __init__(self, geometry: Geometry, columns: Columns) -> None:
        self.geometry = geometry
        self.columns = columns
        self.shape = (len(geometry.layers), len(columns.k))
        self.first: dict[str, Ints] = {}
        self.end: dict[str, Ints] = {}
        self.own: dict[str, Span] = {}
        for layer in geometry.layers:
            if isinstance(layer, RowLayer):
                self.own.update(self.own_rows(layer))

    def work(self) -> RowWork:
        layers, columns = self.shape
        flops = np.full((layers, layers, columns), np.nan)
        fetched, sent = np.zeros_like(flops), np.zeros_like(flops)
        spent = np.zeros(self.shape)
        reach = -1  # the last layer of the longest block of rows that begins here
        for i in reversed(range(layers)):
            layer = self.geometry.rows(i)
            if layer is None:
                reach = -1
                continue
            reach = i if layer.after or reach < 0 else reach
            self.begin(i, layer)
            for step in reversed(layer.steps):
                rows = self.first[step.out][i:], self.end[step.out][i:]
                spent[i:] += step.flops * _count(rows)
                for name in step.reads:
                    self.widen(name, i, layers, _under(step.rule, rows, self.height(name)))
            flops[i, i : reach + 1] = spent[i : reach + 1]
            fetched[i, i : reach + 1] = self.fetched(i)[: reach + 1 - i]
        for j in range(layers):
            self.add_sent(sent[:, j], j)
        return RowWork(self.columns, flops, fetched, sent)

    def height(self, name: str) -> int:
        return self.geometry.heights[name]

    def own_rows(self, layer: RowLayer) -> dict[str, Span]:
        """What a device has of the layer's values once it made its share of the output."""
        found = {layer.output: self.columns.shares(self.height(layer.output))}
        for step in reversed(layer.steps):
            rows = found.setdefault(step.out, self.columns.shares(self.height(step.out)))
            for name in step.reads:
                found[name] = _under(step.rule, rows, self.height(name))
        made = {step.out for step in layer.steps}
        return {name: rows for name, rows in found.items() if name in made}

    def begin(self, i: int, layer: RowLayer) -> None:
        """What must come out of layer i: all of it where a block ends here, or a value goes on."""
        self.widen(layer.output, i, i + 1, self.own[layer.output])
        for step in layer.steps:
            beyond = [j for j in range(i, self.shape[0]) if step.out in self.geometry.cuts[j + 1]]
            if beyond:
                self.widen(step.out, i, beyond[-1] + 1, self.own[step.out])
            elif step.out not in self.first:
                self.widen(step.out, i, i, self.own[step.out])  # read by nobody

    def widen(self, name: str, begin: int, end: int, rows: Span) -> None:
        if name not in self.first:
            self.first[name] = np.full(self.shape, NONE)
            self.end[name] = np.full(self.shape, -NONE)
        self.first[name][begin:end] = np.minimum(self.first[name][begin:end], rows[0])
        self.end[name][begin:end] = np.maximum(self.end[name][begin:end], rows[1])

    def fetched(self, i: int) -> Floats:
        """Numbers that cross the network before blocks that begin with layer i, by last layer."""
        found = np.zeros((self.shape[0] - i, self.shape[1]))
        for name in self.geometry.cuts[i]:
            inside = name in self.geometry.taps and i not in self.geometry.read[name]
            if name not in self.first or inside:
                continue
            need = self.first[name][i:], self.end[name][i:]
            rows = _count(need)
            if name in self.own and name not in self.geometry.relayed:
                own = self.own[name]
                rows = rows - _count(_both(need, own))
                rows += _wanted_by_others(need, own, self.height(name), self.columns)
            found += rows * self.geometry.widths[name]
        return found

    def add_sent(self, sent: Floats, j: int) -> None:
        """Rows that go to the gateway as soon as a block ends with layer j; `sent` is by i."""
        layer, geometry = self.geometry.rows(j), self.geometry
        if layer is None:
            return
        crossing = [name for name in geometry.cuts[j + 1] if name in self.own]
        if geometry.is_rows(j + 1) and not layer.after:
            crossing = [name for name in crossing if name in geometry.relayed]
        else:
            crossing = list(dict.fromkeys([layer.output, *crossing]))
        for name in crossing:
            rows = _count(self.own[name]) * geometry.widths[name]
            sent[: geometry.made[name] + 1] += rows


def _count(rows: Span) -> Ints:
    found: Ints = np.maximum(rows[1] - rows[0], 0)
    return found


def _both(one: Span, other: Span) -> Span:
    return np.maximum(one[0], other[0]), np.minimum(one[1], other[1])


def _under(rule: Rule, rows: Span, height: int) -> Span:
    """The rows of an operator's input under the windows of some rows of its output."""
    first, end = rows
    some = end > first
    top, bottom = (first, end - 1) if rule.repeat == 1 else (
        first // rule.repeat, (end - 1) // rule.repeat)  # fmt: skip
    begin = np.maximum(top * rule.stride - rule.above, 0)
    last = np.minimum(bottom * rule.stride - rule.above + rule.reach, height)
    some = some & (last > begin)
    return np.where(some, begin, NONE), np.where(some, last, -NONE)


def _wanted_by_others(need: Span, own: Span, height: int, columns: Columns) -> Ints:
    """Rows of own_d that at least one other device needs: what anyone needs, but for d alone.

    Needs come in the order of the devices, their first rows and their ends both. So what d alone needs
    lies between the end of those before it and the first row of those after it.
    """
    some = need[1] > need[0]
    # Each k has its own range of numbers, so that sums over the columns never mix two of them.
    base = columns.k * (height + 2)
    ends = np.maximum.accumulate(np.where(some, need[1], 0) + base, axis=1)
    firsts = np.where(some, need[0], height) + base
    firsts = np.minimum.accumulate(firsts[:, ::-1], axis=1)[:, ::-1]
    before, after = np.zeros_like(ends), np.full_like(firsts, height)
    before[:, 1:] = np.maximum(ends[:, :-1] - base[1:], 0)
    after[:, :-1] = np.minimum(firsts[:, 1:] - base[:-1], height)
    alone = np.maximum(need[0], before), np.minimum(need[1], after)
    lowest = np.repeat(firsts[:, columns.starts], columns.sizes, axis=1) - base
    highest = np.repeat(ends[:, columns.starts + columns.sizes - 1], columns.sizes, axis=1) - base
    found = _count(_both((lowest, highest), own)) - _count(_both(alone, own))
    gaps = np.where(some & (before > 0), np.maximum(need[0] - before, 0), 0)
    if gaps.any():
        found -= _below(own[1], before, gaps, columns) - _below(own[0], before, gaps, columns)
    return found


def _below(rows: Ints, first: Ints, gaps: Ints, columns: Columns) -> Ints:
    """Rows before `rows` that lie in gaps between the needs, where windows leave rows out."""
    found = np.zeros_like(gaps)
    for k in range(2, columns.most + 1):
        of_k = columns.of(k)
        reach = rows[of_k][None, :, None] - first[:, None, of_k]
        found[:, of_k] = np.clip(reach, 0, gaps[:, None, of_k]).sum(axis=2)
    return found
