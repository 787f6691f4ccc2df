"""`stitchnet+` within the time of Mix-Mapped.

    best = timely_spread(prr, widths, budget, pace, capacity=None, cost="unicast")

`best_spread` counts packets, not seconds: it sends few long messages several times, which takes longer where
links are slow. Here a plan is taken only if its minibatch takes no longer than Mix-Mapped's (`Pace.keeps`,
the simulator). If the best spread is too slow, other spreads are searched in which a message is sent only as
often as fits into a share of Mix-Mapped's minibatch. Such a spread must meet a stricter rule about a silent
worker than the best one. Without a rule it delivered more than Mix-Mapped in every way, and yet a silent
worker once cost 42 points of accuracy. Otherwise Mix-Mapped's own spread is taken, or another of the paper's
that delivers no less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.fleet.radio import Matrix
from weft.strategies.stitchnet.airtime import AirTime, SlotTime
from weft.strategies.stitchnet.mapping import elect
from weft.strategies.stitchnet.search import (
    Cost,
    PricedSpread,
    best_spread,
    candidates,
    paper_spreads,
    usual_spread,
)

# Shares of Mix-Mapped's minibatch: for the packets of the input, and for all other slots together. The sum is
# above 1, because few messages use all of their time. A spread that takes too long is not taken.
SHARES = ((0.73, 1.2), (0.9, 1.2), (0.55, 1.2))
# The share of the weight that must pass with any worker silent, more than in `search.py`. Spreads within the
# time with 0.21 and 0.22 lost up to 18.7 points more than Mix-Mapped when a worker fell silent.
LEAST = 0.23
MANY = 20  # with more devices only the first shares are tried


@dataclass(frozen=True)
class Pace:
    """How long a minibatch may take, and how long it does."""

    links: AirTime
    limit_s: float  # the seconds of Mix-Mapped's minibatch
    seconds: Callable[[PricedSpread], float]

    def keeps(self, spread: PricedSpread) -> bool:
        """Whether a minibatch takes no longer than Mix-Mapped's."""
        return self.seconds(spread) <= self.limit_s


def timely_spread(
    prr: Matrix,
    widths: Sequence[int],
    budget: int,
    pace: Pace,
    *,
    capacity: Sequence[float] | None = None,
    cost: Cost = "unicast",
) -> PricedSpread:
    """The best spread for `budget` packets a batch that takes no longer than Mix-Mapped's."""
    best = best_spread(prr, widths, budget, capacity=capacity, cost=cost)
    coordinator = elect(prr)
    known, _ = usual_spread(prr, widths, budget, coordinator, cost)
    others = paper_spreads(prr, widths, budget, coordinator, cost)
    if pace.keeps(best):
        return _quickest([best, *others], pace)
    tried: list[PricedSpread] = []
    for slot in _slots(pace, len(prr), 2 * len(widths) + 1) if cost == "unicast" else ():
        tried += candidates(prr, tuple(widths), budget, capacity, coordinator, cost, slot)
    good = [one for one in tried if one.least >= max(LEAST, known.value)]
    good += [one for one in others if one.no_worse(known)]
    better = sorted(good, key=lambda one: -one.score)
    first = next((one for one in better if pace.keeps(one)), known)
    return _quickest([first, known, *others], pace)


def _slots(pace: Pace, devices: int, slots: int) -> list[SlotTime]:
    shares = SHARES if devices <= MANY else SHARES[:1]
    return [
        SlotTime(pace.links, first * pace.limit_s, others * pace.limit_s / (slots - 1))
        for first, others in shares
    ]


def _quickest(spreads: Sequence[PricedSpread], pace: Pace) -> PricedSpread:
    """The quickest of the first one and those that deliver as much as it in every way."""
    equal = [one for one in spreads[1:] if one.no_worse(spreads[0])]
    return min([spreads[0], *equal], key=pace.seconds) if equal else spreads[0]
