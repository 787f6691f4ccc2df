"""`stitchnet+`: the owners of neurons with which a budget of packets delivers the most weight.

    best = best_spread(prr, (64, 64, 64, 64), budget=200)
    best.spread, best.routes, best.value, best.least

Few devices share a layer, so a batch has few messages. The packets that this saves are used to send each
message several times, directly or through the best relay. The order of the devices is improved by swaps.

The value counts the weight that passes with all devices *and* with any one worker silent before others
notice. A layer that is on one device alone would be lost with it. So at least two devices share every
layer. A spread is taken only if, with any worker silent, at least as much passes as Mix-Mapped delivers
with all devices. If there is no such spread, as in swarms of a few devices, Mix-Mapped's spread is taken.
The same holds for unequal devices: shares by speed are tried first, then equal shares, then Mix-Mapped's.
The paper's other spreads are candidates too, where the budget pays for them.
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
from weft.strategies.stitchnet.airtime import SlotTime, Ways
from weft.strategies.stitchnet.broadcast import air, broadcasts
from weft.strategies.stitchnet.budget import best_ways, spend, value, without_each
from weft.strategies.stitchnet.dealing import rounds, windows
from weft.strategies.stitchnet.mapping import MAPPERS, Spread, elect, mix_mapped, near_each_other
from weft.strategies.stitchnet.paths import packets, plan_routes
from weft.strategies.stitchnet.swaps import best_by_swaps

Cost = Literal["unicast", "broadcast"]

LEAST = 0.2  # the share of the weight that must pass with any worker silent
# How much other relays count beside the coordinator, which is never silent unnoticed. Each is tried.
RELAYS = (0.0, 0.6, 1.0)
OTHERS = ("vertical", "average-layers", "horizontal", "random-units")  # the paper's other spreads


@dataclass(frozen=True)
class PricedSpread:
    """A spread of units with its routes and its value."""

    spread: Spread
    routes: Routes
    value: float  # the share of the weight that is expected to pass from end to end
    silent: tuple[float, ...] = ()  # the same with each worker silent in turn

    @property
    def least(self) -> float:
        """The value when the most important worker is silent."""
        return min(self.silent, default=0.0)

    @property
    def score(self) -> float:
        """The value with all devices, times the mean plus the least value with one worker silent."""
        return self.value * (float(np.mean(self.silent)) + self.least)

    def no_worse(self, other: PricedSpread) -> bool:
        """Whether it delivers at least as much: with all devices, in the mean with one silent, and with the
        worst one silent."""
        pairs = (
            (self.value, other.value),
            (float(np.mean(self.silent)), float(np.mean(other.silent))),
            (self.least, other.least),
        )
        return all(ours >= theirs - 1e-9 for ours, theirs in pairs)


def cost_of(routes: Routes, cost: Cost) -> int:
    """The packets of a batch, counted as broadcasts or as unicast."""
    return broadcasts(routes) if cost == "broadcast" else packets(routes)


def best_spread(
    prr: Matrix,
    widths: Sequence[int],
    budget: int,
    *,
    capacity: Sequence[float] | None = None,
    coordinator: int | None = None,
    cost: Cost = "unicast",
) -> PricedSpread:
    """The best spread for `budget` packets a batch.

    `capacity` is the relative speed of each device (None: all equal). `coordinator` is a device that is
    already chosen (None: the one with the best score).
    """
    n = len(prr)
    if n < 2:
        raise InputError(f"stitchnet+ needs a coordinator and a worker; there are {n} devices")
    c = elect(prr) if coordinator is None else coordinator
    known, needed = usual_spread(prr, widths, budget, c, cost)
    others = paper_spreads(prr, widths, budget, c, cost)
    tried: list[PricedSpread] = []
    # Shares by speed come first. A fast device may then hold so much that nobody can do without it.
    for shares in [None] if capacity is None else [capacity, None]:
        tried += candidates(prr, tuple(widths), budget, shares, c, cost)
        good = [one for one in [*tried, *others] if one.least >= max(LEAST, known.value)]
        if good:
            return max(good, key=lambda one: one.score)
    if needed > budget:  # Mix-Mapped is thinned out; another spread may keep more of it
        return max([known, *tried, *others], key=lambda one: one.score)
    if needed < budget:
        routes = (
            air(known.spread, prr, budget)
            if cost == "broadcast"
            else spend(known.spread, prr, budget)
        )
        others.append(valued(known.spread, routes, prr))
    return max([known, *(o for o in others if o.no_worse(known))], key=lambda one: one.score)


def usual_spread(
    prr: Matrix, widths: Sequence[int], budget: int, coordinator: int, cost: Cost
) -> tuple[PricedSpread, int]:
    """Mix-Mapped's spread, and the packets that it needs. If these are more than the budget, it is thinned
    out."""
    usual = mix_mapped(prr, widths, coordinator=coordinator)
    routes = plan_routes("subpath", prr, usual)
    needed = cost_of(routes, cost)
    if needed > budget:
        routes = air(usual, prr, budget) if cost == "broadcast" else spend(usual, prr, budget)
    return valued(usual, routes, prr), needed


def paper_spreads(
    prr: Matrix, widths: Sequence[int], budget: int, coordinator: int, cost: Cost
) -> list[PricedSpread]:
    """The paper's other spreads, each message sent once, where the budget pays for them."""
    priced = []
    for name in OTHERS:
        spread = MAPPERS[name](prr, widths, coordinator, 1)
        routes = plan_routes("subpath", prr, spread)
        if cost_of(routes, cost) <= budget:
            priced.append(valued(spread, routes, prr))
    return priced


def candidates(
    prr: Matrix,
    widths: tuple[int, ...],
    budget: int,
    capacity: Sequence[float] | None,
    coordinator: int,
    cost: Cost,
    slot: SlotTime | None = None,
) -> list[PricedSpread]:
    """The best order of the devices for each number of holders of a layer and each weight of relays. With
    `slot` a message is sent no more often than fits into that time (unicast only)."""
    devices = np.arange(len(prr))
    workers = [d for d in devices.tolist() if d != coordinator]
    order = near_each_other(prr, coordinator, workers)
    return [
        _Kind(
            prr, widths, budget, capacity, coordinator, holders, cost,
            np.where(devices == coordinator, 1.0, welcome), slot,
        ).improved(list(order))
        for holders in sharing(len(workers), len(widths))
        for welcome in RELAYS
    ]  # fmt: skip


def usual_drill(spread: Spread) -> int:
    """Percent of the training minibatches in which one worker is left out: 2 per worker, from 10 to 25.

    With more workers it costs less to leave one out, and each one's turn comes more rarely.
    """
    return min(max(10, 2 * len(spread.workers)), 25)


def sharing(workers: int, layers: int) -> tuple[int, ...]:
    """How many devices may share a layer: as few as possible with all workers, at least two; or one more.

    >>> sharing(8, 4), sharing(3, 4), sharing(15, 4)
    ((2, 3), (2, 3), (4, 5))
    """
    few = min(max(2, ceil(workers / layers)), workers)
    return tuple(range(few, min(few + 1, workers) + 1))


def valued(spread: Spread, routes: Routes, prr: Matrix) -> PricedSpread:
    """A spread with its routes and its value, with all devices and with each worker silent."""
    workers = np.array([d for d in spread.workers if d != spread.coordinator])
    silent = without_each(spread, routes, prr, workers) if len(workers) else np.zeros(0)
    return PricedSpread(spread, routes, value(spread, routes, prr), tuple(silent.tolist()))


@dataclass(frozen=True)
class _Kind:
    """Spreads that differ only in the order of the devices."""

    prr: Matrix
    widths: tuple[int, ...]
    budget: int
    capacity: Sequence[float] | None
    coordinator: int
    holders: int  # devices that share a layer
    cost: Cost
    welcome: Matrix  # by device: how much it counts as a relay
    slot: SlotTime | None  # the time that a message's packets may take; None: any

    def priced(self, order: Sequence[int], ways: Ways) -> PricedSpread:
        """The spread over the devices in this order, with its routes and value."""
        owners = (
            windows(self.widths, order, self.holders)
            if self.capacity is None
            else rounds(self.widths, order, self.capacity, self.holders)
        )
        spread = Spread(len(self.prr), self.coordinator, owners, (), tuple(order))
        if self.cost == "broadcast":
            return valued(spread, air(spread, self.prr, self.budget), self.prr)
        routes = spend(spread, self.prr, self.budget, ways=ways, slot=self.slot)
        return valued(spread, routes, self.prr)

    def improved(self, order: list[int]) -> PricedSpread:
        """The spread after all swaps of devices that give a better score."""
        ways = best_ways(self.prr, weight=self.welcome)
        return best_by_swaps(
            order,
            list(combinations(range(len(order)), 2)),
            price=lambda other: self.priced(other, ways),
            worth=lambda spread: spread.score,
            devices=len(self.prr),
        )
