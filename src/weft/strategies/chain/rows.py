"""Which devices, in which order: a local search over rows of devices, by bounds alone.

    better_rows(task, costs, bounds, begin)      # assignments that are worth a price

A large fleet has too many rows to try. From the best row known, one device is replaced, added, removed or
exchanged with its neighbour, as long as that helps. Each row gets its best cuts, and its value is the least
bound over a few numbers of pieces: a bound is nearly the price, and takes no simulation. Only devices that
are fast and near count: near to the source, or to a device of the row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from weft.plans import options
from weft.plans.task import Task
from weft.strategies.chain import cuts
from weft.strategies.chain.bounds import Bounds
from weft.strategies.common.costs import Costs

NEAR = 16  # devices that may enter a row, for each device of the row
ROUNDS = 12  # a limit, far above what is ever needed
KEEP = 16  # rows that are worth a price
WIDTH = 1  # rows that the search goes on from
SOME_PIECES = (1, 4, 16)
MEANT = 8  # pieces that a device's usefulness is estimated for

Order = tuple[str, ...]


class RowSearch:
    """The values of all rows that were tried."""

    def __init__(self, task: Task, costs: Costs, bounds: Bounds) -> None:
        self.task = task
        self.costs = costs
        self.bounds = bounds
        self.goals = (cuts.bottleneck(costs), cuts.serial(costs))
        self.reached = [n for n in task.fleet.names if task.fleet.connected(task.source, n)]
        self.values: dict[Order, float] = {}
        self.assignments: dict[Order, tuple[str, ...]] = {}
        self._near: dict[str, list[str]] = {}
        pieces = [p for p in SOME_PIECES if p <= task.batch]
        if "micro_batches" in task.options:
            pieces = [options.micro_batches(task)]
        self.steps = [(p, options.in_flight(task, p)) for p in pieces]

    def better(self, begin: Sequence[Order]) -> list[tuple[str, ...]]:
        """Assignments of the best rows that are found from these."""
        best = sorted(dict.fromkeys(begin), key=lambda order: self.value(order, math.inf))[:WIDTH]
        for _ in range(ROUNDS):
            value, worst = self.values[best[0]], self.values[best[-1]]
            # In a fixed order, not a set's: of equally good rows the first that was rated is taken.
            near = dict.fromkeys(other for order in best for other in self.neighbours(order))
            rated = sorted(
                (self.value(order, worst), order) for order in {**near, **dict.fromkeys(best)}
            )
            best = [order for seconds, order in rated[:WIDTH] if seconds < math.inf]
            if self.values[best[0]] >= value * (1 - 1e-6):
                break
        rows = sorted(
            (o for o in self.assignments if o in self.values), key=self.values.__getitem__
        )
        return [self.assignments[order] for order in rows[:KEEP]]

    def around(self, order: Order, above: float) -> list[tuple[str, ...]]:
        """Assignments of the neighbours whose bound is below `above`, the least first."""
        rated = sorted((self.value(near, above), near) for near in self.neighbours(order))
        return [self.assignments[near] for seconds, near in rated[:KEEP] if seconds < above]

    def value(self, order: Order, above: float) -> float:
        """The least bound of a row; infinite if it is certainly not below `above`."""
        if order in self.values:
            return self.values[order]
        least = math.inf
        for goal in self.goals:
            cutting = cuts.best_cuts(self.costs, goal, order)
            if cutting is None or (goal is self.goals[0] and cutting.value >= above):
                return math.inf  # no plan of this row is faster than its busiest device or channel
            assignment = cutting.assignment(self.costs.layers)
            value = min(self.bounds.at_least(assignment, *step) for step in self.steps)
            if value < least:
                least, self.assignments[order] = value, assignment
        self.values[order] = least
        return least

    def neighbours(self, order: Order) -> Iterator[Order]:
        """Rows that differ in one device, or in the order of two neighbours."""
        new = dict.fromkeys(name for at in (self.task.source, *order) for name in self.near(at))
        others = [name for name in new if name not in order]
        for place in range(len(order)):
            before, after = order[:place], order[place + 1 :]
            if len(order) > 1:
                yield before + after
            if after:
                yield (*before, after[0], order[place], *after[1:])
            yield from ((*before, name, *after) for name in others)
        if len(order) < len(self.costs.places) - 1:
            for place in range(len(order) + 1):
                yield from ((*order[:place], name, *order[place:]) for name in others)

    def near(self, device: str) -> list[str]:
        """The devices that could do most for this one: fast, and with a fast way to them. The way back is not
        asked for, because it takes one search for routes per device."""
        if device not in self._near:
            rated = sorted((self._usefulness(device, name), name) for name in self.reached)
            self._near[device] = [name for _, name in rated[:NEAR]]
        return self._near[device]

    def _usefulness(self, device: str, other: str) -> float:
        """Seconds, by a rough model, if `device` computes the first layers and `other` the others."""
        own, its = self.costs.prefix(device), self.costs.prefix(other)
        way = self.costs.ways(device, other)
        rest = its[-1] - its
        return float(np.min(np.maximum(np.maximum(own, way), rest) + (own + way + rest) / MEANT))
