"""`stitchnet+`: who owns which neurons, chosen by the weight that a budget of packets delivers.

    found = best_spread(prr, (64, 64, 64, 64), budget=200)
    found.spread, found.routes, found.value
    after = recover(found.spread, prr, budget=200, lost=[3, 5], importance=norms)

Neurons are dealt layer by layer to the workers in some order, each as many as it can carry. Few devices share
a layer then, so a batch has few messages, and the packets that this saves are spent on sending the messages
that remain several times, directly or through the best relay. The order is improved by swapping workers,
and the best connected devices are tried as the coordinator. The paper's own spreads are candidates too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.fleet.radio import Matrix
from weft.plans.delivery import Routes
from weft.strategies.stitchnet.budget import spend, value
from weft.strategies.stitchnet.importance import Importance
from weft.strategies.stitchnet.mapping import (
    NOBODY,
    Owners,
    Spread,
    horizontal,
    mix_mapped,
    near_each_other,
)

HEADS = 3  # how many well-connected devices are tried as the coordinator
OVERLOADS = (2.0, 3.0, 4.0)  # times its share that a device may carry after others are lost
ENOUGH = 0.8  # of the weight passing from end to end: no need to load devices further


@dataclass(frozen=True)
class Found:
    spread: Spread
    routes: Routes
    value: float  # the share of weight that is expected to be delivered from end to end


def best_spread(
    prr: Matrix,
    widths: Sequence[int],
    budget: int,
    *,
    capacity: Sequence[float] | None = None,
    coordinator: int | None = None,
) -> Found:
    """The best spread found for `budget` packets a batch.

    `capacity` is what each device can carry beside the others (all the same where not given);
    `coordinator` where it is settled already.
    """
    n = len(prr)
    if n < 2:
        raise InputError(f"stitchnet+ needs a coordinator and a worker; there are {n} devices")
    kept = [np.arange(width) for width in widths]
    share = np.ones(n) if capacity is None else np.array(capacity, dtype=float)
    everyone = np.ones(n, dtype=bool)
    both = (prr * prr.T).sum(axis=1)
    heads = np.argsort(-both)[:HEADS].tolist() if coordinator is None else [coordinator]
    found = []
    for c in heads:
        order = near_each_other(prr, c, [d for d in range(n) if d != c])
        deal = _Deal(prr, tuple(widths), kept, budget, share, everyone, c)
        found.append(deal.improved(list(order), n - 1))
    if capacity is None:
        for spread in (mix_mapped(prr, widths), horizontal(prr, widths)):
            found.append(_priced(spread, prr, budget, everyone))
    return max(found, key=lambda one: one.value)


def recover(
    spread: Spread,
    prr: Matrix,
    budget: int,
    lost: Sequence[int],
    importance: Importance,
    *,
    capacity: Sequence[float] | None = None,
) -> Found:
    """The best spread without the lost devices; every neuron that fits is cloned somewhere.

    The coordinator has the weights on record and carries neurons too. A device carries up to twice its share,
    up to four times where too little would pass otherwise (Mix-Mapped's last worker carries five times its
    share). One that is hardly heard is left out, and where not all neurons fit the least important go.
    """
    best: Found | None = None
    for overload in OVERLOADS:
        found = _respread(spread, prr, budget, lost, importance, capacity, overload)
        if best is None or found.value > best.value:
            best = found
        if best.value >= ENOUGH:
            break
    assert best is not None
    return best


def _respread(
    spread: Spread, prr: Matrix, budget: int, lost: Sequence[int], importance: Importance,
    capacity: Sequence[float] | None, overload: float,
) -> Found:  # fmt: skip
    n, c = spread.devices, spread.coordinator
    share = np.ones(n) if capacity is None else np.array(capacity, dtype=float)
    alive = ~np.isin(np.arange(n), list(lost))
    workers = [d for d in range(n) if d != c]
    each = overload * share / share[workers].sum() * sum(spread.widths)  # neurons at most
    both = prr[:, c] * prr[c]
    able = sorted(np.flatnonzero(alive).tolist(), key=lambda d: (d != c, -both[d]))
    room = np.cumsum([each[d] for d in able]) / sum(spread.widths)
    found = []
    for used in range(1, len(able) + 1):
        fits = min(1.0, float(room[used - 1]))
        kept = [np.sort(np.argsort(-norm)[: ceil(fits * len(norm))]) for norm in importance]
        deal = _Deal(prr, spread.widths, kept, budget, share, alive, c)
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
    alive: NDArray[np.bool_]  # who may relay
    coordinator: int

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
        return _priced(spread, self.prr, self.budget, self.alive)

    def improved(self, order: list[int], used: int) -> Found:
        """Swaps devices, those beyond the first `used` too, as long as that delivers more."""
        best = self.priced(order[:used])
        better = True
        while better:
            better = False
            for i, j in combinations(range(len(order)), 2):
                if i >= used:
                    continue
                other = list(order)
                other[i], other[j] = other[j], other[i]
                found = self.priced(other[:used])
                if found.value > best.value + 1e-9:
                    best, order, better = found, other, True
        return best


def dealt(
    widths: Sequence[int], order: Sequence[int], capacity: Sequence[float] | NDArray[np.float64]
) -> Owners:
    """Neurons layer by layer to devices in order, in proportion to what each can carry.

    >>> [o.tolist() for o in dealt((2, 4), [5, 3, 4], [1] * 6)]
    [[5, 5], [3, 3, 4, 4]]
    """
    total = sum(widths)
    share = np.array([capacity[d] for d in order], dtype=float)
    ends = np.round(np.cumsum(share) / share.sum() * total).astype(np.int64)
    owner = np.repeat(np.array(order), np.diff(ends, prepend=0))
    return tuple(np.split(owner, np.cumsum(widths)[:-1]))


def _priced(spread: Spread, prr: Matrix, budget: int, alive: NDArray[np.bool_]) -> Found:
    routes = spend(spread, prr, budget, alive)
    return Found(spread, routes, value(spread, routes, prr))
