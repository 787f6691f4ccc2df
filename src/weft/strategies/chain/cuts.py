"""Where to cut a network for a row of devices. The cuts are the best ones: dynamic programming tries all.

    goal = bottleneck(costs)
    best_cuts(costs, goal, ["pi", "nuc", "cloud"])     # a Cutting: its value, devices and cuts

The value after m layers, when a device is added to the row, is the best over all cuts m' < m of

    join(value[m'] of the row before, time to send cut m' to this device, time of layers m'..m-1)

Two goals use this. `bottleneck` joins by the maximum: the period of a full pipeline, where each
message counts alone. `serial` joins by the sum: the time of one minibatch when nothing overlaps.
Two orders of devices that begin alike share the values of that beginning. A network of very many layers is
cut between its blocks only (`plans/places.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.strategies.common.costs import Costs

Array = NDArray[np.float64]


class Goal(NamedTuple):
    """How the costs of a row are joined, and what a message costs (seconds)."""

    join: Callable[[Any, Any, Any], Any]  # of numbers or arrays: the row before, a message, a stage
    enter: Callable[[str], float]
    crossings: Callable[[str, str], Array]  # by place
    leave: Callable[[str], float]


def bottleneck(costs: Costs) -> Goal:
    """The goal of a pipeline: the busiest device or link takes as little as possible."""
    return Goal(_largest, costs.enter_load, cache(costs.loads), costs.leave_load)


def serial(costs: Costs) -> Goal:
    """The goal of one minibatch at a time: all stages together take as little as possible."""
    return Goal(_total, costs.enter, cache(costs.crossings), costs.leave)


def _largest(before: Any, message: Any, stage: Any) -> Any:
    return np.maximum(np.maximum(before, message), stage)


def _total(before: Any, message: Any, stage: Any) -> Any:
    return before + message + stage


class Cutting(NamedTuple):
    """A row of devices, the number of layers before each cut, and its value in seconds."""

    value: float
    order: tuple[str, ...]
    cuts: tuple[int, ...]

    def assignment(self, layers: int) -> tuple[str, ...]:
        """The device of each layer."""
        ends = [0, *self.cuts, layers]
        return tuple(
            device
            for device, first, end in zip(self.order, ends[:-1], ends[1:], strict=True)
            for _ in range(first, end)
        )


class Row(NamedTuple):
    """By the place after the last layer done: the best value, and the place of the cut before the last
    device. The value is infinite where no cutting exists or fits."""

    seconds: Array
    cuts: NDArray[np.intp]


def cuttings(
    costs: Costs, goal: Goal, follow: Callable[[tuple[str, ...]], Iterable[str]]
) -> Iterator[Cutting]:
    """The best cutting of each order of devices. `follow` says which devices may come after an order."""

    def grow(order: tuple[str, ...], rows: list[Row]) -> Iterator[Cutting]:
        if order and rows[-1].seconds[-1] < math.inf:
            yield _finish(costs, goal, order, rows)
        if len(order) == len(costs.places) - 1:
            return
        for device in follow(order):
            row = _next_row(costs, goal, rows[-1], order[-1], device) if order else None
            row = row or _first_row(costs, goal, device)
            yield from grow((*order, device), [*rows, row])

    yield from grow((), [])


def best_cuts(costs: Costs, goal: Goal, order: Sequence[str]) -> Cutting | None:
    """The best cutting for exactly this row of devices, at least one layer each; None if none fits."""

    def follow(done: tuple[str, ...]) -> Iterable[str]:
        return order[len(done) : len(done) + 1]

    candidates = cuttings(costs, goal, follow)
    return next((cutting for cutting in candidates if len(cutting.order) == len(order)), None)


def _first_row(costs: Costs, goal: Goal, device: str) -> Row:
    stage, fits = costs.stages(device)
    seconds = np.where(fits[0], goal.join(goal.enter(device), stage[0], 0.0), math.inf)
    seconds[0] = math.inf
    return Row(seconds, np.zeros(len(seconds), np.intp))


def _next_row(costs: Costs, goal: Goal, before: Row, last: str, device: str) -> Row:
    """All cuts of all numbers of layers at once. Of equal values the latest cut is taken."""
    cross = goal.crossings(last, device)
    stage, fits = costs.stages(device)
    values = goal.join(before.seconds[:, None], cross[:, None], stage)
    values = np.where(fits, values, math.inf)[::-1]
    cuts = len(cross) - 1 - values.argmin(axis=0)
    return Row(values.min(axis=0), cuts)


def _finish(costs: Costs, goal: Goal, order: tuple[str, ...], rows: list[Row]) -> Cutting:
    cuts: list[int] = []
    place = len(costs.places) - 1
    for row in reversed(rows[1:]):
        place = int(row.cuts[place])
        cuts.append(int(costs.places[place]))
    value = float(goal.join(rows[-1].seconds[-1], goal.leave(order[-1]), 0.0))
    return Cutting(value, order, tuple(reversed(cuts)))
