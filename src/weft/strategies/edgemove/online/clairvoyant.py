"""A bound that no policy can beat: the best server and cut at every second, from the true values.

    clairvoyant_s(costs, day, in_flight=2, steps=10_000)             # changes cost nothing
    clairvoyant_s(costs, day, in_flight=2, steps=10_000, paid=True)  # a new worker must get its weights

The noise of single minibatches and an empty pipeline can only cost time. Both are left out.
"""

from __future__ import annotations

import numpy as np

from weft.fleet.city import Day, Moment
from weft.strategies.edgemove.model import Floats, SplitCosts, Ways, period, stage_seconds

BLOCK_S = 64  # seconds that are priced at once


def clairvoyant_s(
    costs: SplitCosts, day: Day, in_flight: int, steps: int, paid: bool = False
) -> float:
    """The least seconds in which `steps` minibatches can be done."""
    alone = 1 / costs.alone_s
    # Minibatches done so far, by the server that is used now.
    best = np.full(len(day.city.places) - 1, -np.inf)
    by_itself, second = 0.0, 0
    while True:
        whole = day.until(second + BLOCK_S)
        rates, moving_s = _prices(costs, whole, slice(second, second + BLOCK_S), in_flight)
        for rate, moving in zip(rates, moving_s, strict=True):
            done = max(by_itself, float(best.max()))
            # While weights are sent, nothing is trained: the server's work of that time is lost.
            changed = done - rate * moving * paid
            before, best = best, np.where(rate > 0, np.maximum(best, changed) + rate, -np.inf)
            by_itself = done + alone
            if max(by_itself, float(best.max())) >= steps:
                return second + _share(steps, before, changed, rate, done, alone)
            second += 1


def _prices(
    costs: SplitCosts, whole: Moment, seconds: slice, in_flight: int
) -> tuple[Floats, Floats]:
    """By second and server: minibatches per second with the best cut (0 if out of reach), and the seconds
    to send that cut's weights to the server."""
    reach = whole.reach[seconds, :-1]  # without the cloud
    where = np.nonzero(reach)
    slowdown, up, down, rtt = (part[seconds, :-1][where].astype(float) for part in whole[1:])
    periods = period(stage_seconds(costs, Ways(slowdown, up, down, rtt)), in_flight)
    cut = periods.argmin(axis=1)
    rates, moving = np.zeros(reach.shape), np.zeros(reach.shape)
    rates[where] = 1 / periods.min(axis=1)
    moving[where] = costs.worker_bytes[cut + 1] / up
    return rates, moving


def _share(
    steps: int, before: Floats, changed: Floats, rate: Floats, done: float, alone: float
) -> float:
    """The share of the last second until all minibatches are done."""
    there = rate > 0
    left = steps - np.maximum(before, changed)[there]
    by_servers = float(np.min(left / rate[there], initial=np.inf))
    return max(0.0, min(by_servers, (steps - done) / alone))
