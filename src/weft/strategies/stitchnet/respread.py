"""What is left of a swarm after devices are lost, spread anew by `stitchnet+`.

after = recover(found.spread, prr, budget=200, lost=[3, 5], importance=norms)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil

import numpy as np
from numpy.typing import NDArray

from weft.fleet.radio import Matrix
from weft.strategies.stitchnet.broadcast import air
from weft.strategies.stitchnet.budget import Ways, best_ways, spend, value
from weft.strategies.stitchnet.dealing import dealt
from weft.strategies.stitchnet.importance import Importance
from weft.strategies.stitchnet.mapping import NOBODY, Spread
from weft.strategies.stitchnet.search import LOOKS, Cost, Found, spaced

OVERLOADS = (2.0, 3.0, 4.0)  # times its share that a device may carry after others are lost
ENOUGH = 0.8  # of the weight passing from end to end: no need to load devices further


def recover(
    spread: Spread,
    prr: Matrix,
    budget: int,
    lost: Sequence[int],
    importance: Importance,
    *,
    capacity: Sequence[float] | None = None,
    cost: Cost = "unicast",
) -> Found:
    """The best spread without the lost devices; every neuron that fits is cloned somewhere.

    The coordinator has the weights on record and carries neurons too. A device carries up to twice its share,
    up to four times where too little would pass otherwise (Mix-Mapped's last worker carries five times its
    share). One that is hardly heard is left out, and where not all neurons fit the least important go.
    """
    best: Found | None = None
    for overload in OVERLOADS:
        found = _respread(spread, prr, budget, lost, importance, capacity, overload, cost)
        if best is None or found.value > best.value:
            best = found
        if best.value >= ENOUGH:
            break
    assert best is not None
    return best


def _respread(
    spread: Spread, prr: Matrix, budget: int, lost: Sequence[int], importance: Importance,
    capacity: Sequence[float] | None, overload: float, cost: Cost,
) -> Found:  # fmt: skip
    n, c = spread.devices, spread.coordinator
    share = np.ones(n) if capacity is None else np.array(capacity, dtype=float)
    alive = ~np.isin(np.arange(n), list(lost))
    workers = [d for d in range(n) if d != c]
    each = overload * share / share[workers].sum() * sum(spread.widths)  # neurons at most
    both = prr[:, c] * prr[c]
    able = sorted(np.flatnonzero(alive).tolist(), key=lambda d: (d != c, -both[d]))
    room = np.cumsum([each[d] for d in able]) / sum(spread.widths)
    found, ways = [], best_ways(prr, alive)
    for used in range(1, len(able) + 1):
        fits = min(1.0, float(room[used - 1]))
        kept = [np.sort(np.argsort(-norm)[: ceil(fits * len(norm))]) for norm in importance]
        deal = _Deal(prr, spread.widths, kept, budget, share, ways, c, cost)
        found.append(deal.improved(able, used))
    return max(found, key=lambda one: one.value)


@dataclass(frozen=True)
class _Deal:
    """Everything that stays the same while orders are compared."""

    prr: Matrix
    widths: tuple[int, ...]
    kept: list[NDArray[np.int64]]  # by layer: the neurons that are dealt
    budget: int
    share: NDArray[np.float64]
    ways: Ways  # by those who may relay
    coordinator: int
    cost: Cost

    def priced(self, order: Sequence[int]) -> Found:
        counts = [len(units) for units in self.kept]
        owners = []
        for width, units, dealt_out in zip(
            self.widths, self.kept, dealt(counts, order, self.share), strict=True
        ):
            owner = np.full(width, NOBODY)
            owner[units] = dealt_out
            owners.append(owner)
        spread = Spread(len(self.prr), self.coordinator, tuple(owners), (), tuple(order))
        if self.cost == "broadcast":
            routes = air(spread, self.prr, self.budget)
        else:
            routes = spend(spread, self.prr, self.budget, ways=self.ways)
        return Found(spread, routes, value(spread, routes, self.prr))

    def improved(self, order: list[int], used: int) -> Found:
        """Swaps devices, those beyond the first `used` too, as long as that delivers more."""
        best = self.priced(order[:used])
        swaps = [(i, j) for i, j in combinations(range(len(order)), 2) if i < used]
        looks, better = LOOKS // len(self.prr) ** 2, True
        while better and looks > 0:
            better = False
            for i, j in spaced(swaps, looks):
                looks -= 1
                other = list(order)
                other[i], other[j] = other[j], other[i]
                found = self.priced(other[:used])
                if found.value > best.value + 1e-9:
                    best, order, better = found, other, True
        return best
