"""`stitchnet+` after devices are lost: a new spread over the devices that are left.

after = recover(best.spread, prr, budget=200, lost=[3, 5], importance=norms)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil

import numpy as np
from numpy.typing import NDArray

from weft.fleet.radio import Matrix
from weft.strategies.stitchnet.airtime import Ways
from weft.strategies.stitchnet.broadcast import air
from weft.strategies.stitchnet.budget import best_ways, spend, value
from weft.strategies.stitchnet.dealing import dealt
from weft.strategies.stitchnet.importance import Importance
from weft.strategies.stitchnet.mapping import NOBODY, Spread
from weft.strategies.stitchnet.search import Cost, PricedSpread
from weft.strategies.stitchnet.swaps import best_by_swaps

OVERLOADS = (2.0, 3.0, 4.0)  # how many times its share a device may carry after others are lost
ENOUGH = 0.8  # if this share of the weight passes from end to end, devices are not loaded further


def recover(
    spread: Spread,
    prr: Matrix,
    budget: int,
    lost: Sequence[int],
    importance: Importance,
    *,
    capacity: Sequence[float] | None = None,
    cost: Cost = "unicast",
) -> PricedSpread:
    """The best spread without the lost devices. Every neuron that has room is cloned to some device.

    The coordinator has recorded all weights, and it may get neurons too. A device carries at most twice its
    share; up to four times if too little would pass otherwise (Mix-Mapped's last worker carries five times
    its share). A device with bad links is left out. If not all neurons have room, the least important ones
    are dropped.
    """
    best: PricedSpread | None = None
    for overload in OVERLOADS:
        candidate = _respread(spread, prr, budget, lost, importance, capacity, overload, cost)
        if best is None or candidate.value > best.value:
            best = candidate
        if best.value >= ENOUGH:
            break
    assert best is not None
    return best


def _respread(
    spread: Spread, prr: Matrix, budget: int, lost: Sequence[int], importance: Importance,
    capacity: Sequence[float] | None, overload: float, cost: Cost,
) -> PricedSpread:  # fmt: skip
    n, c = spread.devices, spread.coordinator
    share = np.ones(n) if capacity is None else np.array(capacity, dtype=float)
    alive = ~np.isin(np.arange(n), list(lost))
    workers = [d for d in range(n) if d != c]
    # The most neurons by device.
    each = overload * share / share[workers].sum() * sum(spread.widths)
    both = prr[:, c] * prr[c]
    able = sorted(np.flatnonzero(alive).tolist(), key=lambda d: (d != c, -both[d]))
    room = np.cumsum([each[d] for d in able]) / sum(spread.widths)
    candidates, ways = [], best_ways(prr, alive)
    for used in range(1, len(able) + 1):
        fits = min(1.0, float(room[used - 1]))
        kept = [np.sort(np.argsort(-norm)[: ceil(fits * len(norm))]) for norm in importance]
        deal = _Deal(prr, spread.widths, kept, budget, share, ways, c, cost)
        candidates.append(deal.improved(able, used))
    return max(candidates, key=lambda one: one.value)


@dataclass(frozen=True)
class _Deal:
    """What stays the same while orders of devices are compared."""

    prr: Matrix
    widths: tuple[int, ...]
    kept: list[NDArray[np.int64]]  # by layer: the neurons that are kept
    budget: int
    share: NDArray[np.float64]
    ways: Ways  # with the relays that are left
    coordinator: int
    cost: Cost

    def priced(self, order: Sequence[int]) -> PricedSpread:
        """The spread over the devices in this order, with its routes and value."""
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
        return PricedSpread(spread, routes, value(spread, routes, self.prr))

    def improved(self, order: list[int], used: int) -> PricedSpread:
        """The spread after all swaps, also with devices after the first `used`, that deliver more."""
        return best_by_swaps(
            order,
            [(i, j) for i, j in combinations(range(len(order)), 2) if i < used],
            price=lambda other: self.priced(other[:used]),
            worth=lambda spread: spread.value,
            devices=len(self.prr),
        )
