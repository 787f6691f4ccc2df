"""Where to cut a network for a row of devices. The cuts are the best ones: dynamic programming tries all.

    goal = bottleneck(costs)
    best_cuts(costs, goal, ["pi", "nuc", "cloud"])     # a Cutting: its value, devices and cuts

The value after m layers, when a device is added to the row, is the best over all cuts m' < m of

    join(value[m'] of the row before, time to send cut m' to this device, time of layers m'..m-1)

Two goals use this. `bottleneck` joins by the maximum: the period of a full pipeline, where each
message counts alone. `serial` joins by the sum: the time of one minibatch when nothing overlaps.
Two orders of devices that begin alike share the values of that beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from weft.strategies.common.costs import Costs


class Goal(NamedTuple):
    """How the costs of a row are joined, and what a message costs (seconds)."""

    join: Callable[[tuple[float, float, float]], float]
    enter: Callable[[str], float]
    cross: Callable[[int, str, str], float]
    leave: Callable[[str], float]


def bottleneck(costs: Costs) -> Goal:
    """The goal of a pipeline: the busiest device or link takes as little as possible."""
    return Goal(max, costs.enter_load, costs.load, costs.leave_load)


def serial(costs: Costs) -> Goal:
    """The goal of one minibatch at a time: all stages together take as little as possible."""
    return Goal(sum, costs.enter, costs.cross, costs.leave)


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


# By the number of layers done: the best value (seconds), and the cut before the last device.
Row = list[tuple[float, int]]
NOWAY = (math.inf, 0)  # no cutting exists, or it does not fit


def cuttings(
    costs: Costs, goal: Goal, follow: Callable[[tuple[str, ...]], Iterable[str]]
) -> Iterator[Cutting]:
    """The best cutting of each order of devices. `follow` says which devices may come after an order."""

    def grow(order: tuple[str, ...], rows: list[Row]) -> Iterator[Cutting]:
        if order and rows[-1][-1][0] < math.inf:
            yield _finish(costs, goal, order, rows)
        if len(order) == costs.layers:
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
    enter = goal.enter(device)
    row: Row = [NOWAY]
    for m in range(1, costs.layers + 1):
        fits = costs.fits(device, 0, m - 1)
        row.append((goal.join((enter, costs.compute(device, 0, m - 1), 0.0)), 0) if fits else NOWAY)
    return row


def _next_row(costs: Costs, goal: Goal, before: Row, last: str, device: str) -> Row:
    cross = [goal.cross(m, last, device) for m in range(costs.layers + 1)]
    row: Row = [NOWAY]
    for m in range(1, costs.layers + 1):
        best = NOWAY
        for cut in range(m - 1, 0, -1):
            compute = costs.compute(device, cut, m - 1)
            # An earlier cut makes this stage longer, so no better value can follow.
            if compute >= best[0] or not costs.fits(device, cut, m - 1):
                break
            value = goal.join((before[cut][0], cross[cut], compute))
            if value < best[0]:
                best = (value, cut)
        row.append(best)
    return row


def _finish(costs: Costs, goal: Goal, order: tuple[str, ...], rows: list[Row]) -> Cutting:
    cuts: list[int] = []
    m = costs.layers
    for row in reversed(rows[1:]):
        m = row[m][1]
        cuts.append(m)
    value = goal.join((rows[-1][costs.layers][0], goal.leave(order[-1]), 0.0))
    return Cutting(value, order, tuple(reversed(cuts)))
