"""How likely a swarm's messages are to arrive. The plan's messages are given as matrices of numbers.

    believed(plan)              # slots x n x n, row sends; from the links as the plan knows them
    chance(routes, delivery)    # the same for any routes

Devices are numbered as in the fleet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.draws import Drills
from weft.fleet.radio import Matrix, fleet_delivery
from weft.plans.plan import Plan

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Routes:
    """How often each message is sent, directly and by a relay. The row sends, the column receives; one matrix
    per slot."""

    direct: Counts  # slots x n x n: packets sent directly to the receiver
    relayed: Counts  # slots x n x n: packets sent through the relay `via`, two hops each
    via: NDArray[np.int64]  # n x n: the relay between two devices

    @property
    def attempts(self) -> int:
        """The largest number of times that a message is sent."""
        return int(max(self.direct.max(), self.relayed.max(), 1))


def routes_of(plan: Plan) -> Routes:
    """The plan's messages as matrices."""
    swarm = plan.swarm
    assert swarm is not None
    number = {name: n for n, name in enumerate(plan.fleet.names)}
    shape = (swarm.slots, len(number), len(number))
    direct, relayed = (np.zeros(shape, dtype=np.int64) for _ in range(2))
    via = np.full(shape[1:], number[swarm.coordinator])
    for m in swarm.messages:
        place = m.slot, number[m.source], number[m.dest]
        direct[place], relayed[place] = m.direct, m.relayed
        if m.relayed:
            via[place[1:]] = number[m.via]
    return Routes(direct, relayed, via)


def drills_of(plan: Plan) -> Drills:
    """Which workers are left out of how many minibatches; in answering none is."""
    swarm = plan.swarm
    assert swarm is not None
    names = plan.fleet.names
    workers = {shard.device for shard in plan.shards} - {swarm.coordinator}
    percent = swarm.drill if plan.mode == "train" else 0
    return Drills(swarm.seed, percent, tuple(sorted(names.index(name) for name in workers)))


def known_links(plan: Plan) -> Matrix:
    """The packet reception ratios that the plan was made with: the measured ones, else those of the fleet."""
    measured = plan.swarm.prr if plan.swarm else ()
    return np.array(measured) if measured else fleet_delivery(plan.fleet)


def chance(routes: Routes, delivery: Matrix) -> Matrix:
    """The probability that each message arrives (slots x n x n): 1 to the sender itself, 0 if no message is
    sent."""
    n = len(delivery)
    rows, columns = np.arange(n)[:, None], np.arange(n)[None]
    relay = delivery[rows, routes.via] * delivery[routes.via, columns]
    arrives: Matrix = 1 - (1 - delivery) ** routes.direct * (1 - relay) ** routes.relayed
    arrives[:, np.arange(n), np.arange(n)] = 1.0
    return arrives


def believed(plan: Plan) -> Matrix:
    """The probability that each message arrives, computed from the links as the plan knows them: slots x n x
    n, row sends."""
    return chance(routes_of(plan), known_links(plan))
