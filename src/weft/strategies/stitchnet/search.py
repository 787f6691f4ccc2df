"""`stitchnet+`: who owns which neurons, chosen by the weight that a budget of packets delivers.

    found = best_spread(prr, (64, 64, 64, 64), budget=200)
    found.spread, found.routes, found.value, found.least

Few devices share a layer, so a batch has few messages, and the packets that this saves are spent on sending
the messages that remain several times, directly or through the best relay. The order of the devices is
improved by swaps.

What counts is the weight that passes when all are there *and* when any one worker is silent before anybody
has noticed: a layer that one device has alone would be gone with it. So at least two devices share every
layer, and a spread is taken only where, whoever is silent, still as much passes as Mix-Mapped delivers with
all there. Where none does, as in swarms of a few devices, it is Mix-Mapped's own spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil
from typing import Literal

import numpy as np

from weft.errors import InputError
from weft.fleet.radio import Matrix
from weft.plans.delivery import Routes
from weft.strategies.stitchnet.broadcast import air, broadcasts
from weft.strategies.stitchnet.budget import Ways, best_ways, spend, value, without_each
from weft.strategies.stitchnet.dealing import rounds, windows
from weft.strategies.stitchnet.mapping import Spread, elect, mix_mapped, near_each_other
from weft.strategies.stitchnet.paths import packets, plan_routes

Cost = Literal["unicast", "broadcast"]

LEAST = 0.2  # of the weight that must pass whichever worker is silent
# How welcome other relays are beside the coordinator, who is never silent unnoticed: each is tried.
RELAYS = (0.0, 0.6, 1.0)
LOOKS = 40_000  # devices x devices x spreads that are compared at most, for each kind of spread


@dataclass(frozen=True)
class Found:
    """The best spread of units, and its value."""

    spread: Spread
    routes: Routes
    value: float  # the share of weight that is expected to be delivered from end to end
    silent: tuple[float, ...] = ()  # the same with each worker silent

    @property
    def least(self) -> float:
        """What still passes when the worker is silent that is missed most."""
        return min(self.silent, default=0.0)

    @property
    def score(self) -> float:
        """With all there, times what is left on average and at worst when one is silent."""
        return self.value * (float(np.mean(self.silent)) + self.least)


def cost_of(routes: Routes, cost: Cost) -> int:
    """Packets of a batch, counted one way or the other."""
    return broadcasts(routes) if cost == "broadcast" else packets(routes)


def best_spread(
    prr: Matrix,
    widths: Sequence[int],
    budget: int,
    *,
    capacity: Sequence[float] | None = None,
    coordinator: int | None = None,
    cost: Cost = "unicast",
) -> Found:
    """The best spread found for `budget` packets a batch.

    `capacity` is what each device can carry beside the others (all the same where not given);
    `coordinator` where it is settled already, else the device with the best score.
    """
    n = len(prr)
    if n < 2:
        raise InputError(f"stitchnet+ needs a coordinator and a worker; there are {n} devices")
    c = elect(prr) if coordinator is None else coordinator
    order = near_each_other(prr, c, [d for d in range(n) if d != c])
    found = []
    for holders in sharing(n - 1, len(widths)):
        for welcome in RELAYS:
            weight = np.where(np.arange(n) == c, 1.0, welcome)
            kind = _Kind(prr, tuple(widths), budget, capacity, c, holders, cost, weight)
            found.append(kind.improved(list(order)))
    if capacity is not None:
        return max(found, key=lambda one: one.score)
    usual = mix_mapped(prr, widths, coordinator=c)
    routes = plan_routes("subpath", prr, usual)
    if cost_of(routes, cost) > budget:
        routes = air(usual, prr, budget) if cost == "broadcast" else spend(usual, prr, budget)
    known = valued(usual, routes, prr)
    good = [one for one in found if one.least >= max(LEAST, known.value)]
    return max(good, key=lambda one: one.score, default=known)


def usual_drill(spread: Spread) -> int:
    """Percent of the minibatches that a worker is left out of: 2 for each worker, 10 to 25.

    The more workers there are, the less it costs to leave one out, and the rarer is each one's turn.
    """
    return min(max(10, 2 * len(spread.workers)), 25)


def sharing(workers: int, layers: int) -> tuple[int, ...]:
    """How many devices share a layer: as few as all workers allow, at least two; and one more.

    >>> sharing(8, 4), sharing(3, 4), sharing(15, 4)
    ((2, 3), (2, 3), (4, 5))
    """
    few = min(max(2, ceil(workers / layers)), workers)
    return tuple(range(few, min(few + 1, workers) + 1))


def valued(spread: Spread, routes: Routes, prr: Matrix) -> Found:
    """A spread and its routes with what passes, with all there and with each worker silent."""
    workers = np.array([d for d in spread.workers if d != spread.coordinator])
    silent = without_each(spread, routes, prr, workers) if len(workers) else np.zeros(0)
    return Found(spread, routes, value(spread, routes, prr), tuple(silent.tolist()))


@dataclass(frozen=True)
class _Kind:
    """Spreads that differ in the order of the devices alone."""

    prr: Matrix
    widths: tuple[int, ...]
    budget: int
    capacity: Sequence[float] | None
    coordinator: int
    holders: int  # devices that share a layer
    cost: Cost
    welcome: Matrix  # which relays are preferred

    def priced(self, order: Sequence[int], ways: Ways) -> Found:
        owners = (
            windows(self.widths, order, self.holders)
            if self.capacity is None
            else rounds(self.widths, order, self.capacity, self.holders)
        )
        spread = Spread(len(self.prr), self.coordinator, owners, (), tuple(order))
        if self.cost == "broadcast":
            return valued(spread, air(spread, self.prr, self.budget), self.prr)
        return valued(spread, spend(spread, self.prr, self.budget, ways=ways), self.prr)

    def improved(self, order: list[int]) -> Found:
        """Swaps devices as long as that gives a better score, in as many looks as time allows."""
        ways = best_ways(self.prr, weight=self.welcome)
        best = self.priced(order, ways)
        swaps = list(combinations(range(len(order)), 2))
        looks, better = LOOKS // len(self.prr) ** 2, True
        while better and looks > 0:
            better = False
            for i, j in spaced(swaps, looks):
                looks -= 1
                other = list(order)
                other[i], other[j] = other[j], other[i]
                found = self.priced(other, ways)
                if found.score > best.score + 1e-9:
                    best, order, better = found, other, True
        return best


def spaced(swaps: list[tuple[int, int]], looks: int) -> list[tuple[int, int]]:
    """At most so many swaps, evenly over all: where time is short, not always the same devices'.

    >>> spaced([(0, 1), (0, 2), (1, 2)], 2)
    [(0, 1), (0, 2)]
    """
    if len(swaps) <= looks:
        return swaps
    return [swaps[k * len(swaps) // looks] for k in range(looks)]
