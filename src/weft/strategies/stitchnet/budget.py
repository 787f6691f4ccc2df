"""How a budget of packets is best spent: the expected weight that is delivered, packet by packet.

    routes = spend(spread, prr, budget=200)
    value(spread, routes, prr)         # near 1 where every message is nearly sure to arrive

A message from device s to device d carries the weights between their neurons. Counted with weights of equal
size, its worth is (share of the layer that s owns) x (share of the next layer that d owns), so every boundary
is worth 1. Each further packet of a message adds worth x (chance that it is the first to arrive), which falls
with every packet; taking the best gain per packet first is therefore optimal up to the last relayed packet.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.fleet.radio import Matrix
from weft.plans.delivery import Routes, chance
from weft.strategies.stitchnet.mapping import Spread
from weft.strategies.stitchnet.paths import slots, wanted

# Fifty probes cannot tell a sure link from one that loses one packet in fifty, or a dead link from one
# that delivers one: a link is never taken for better or worse than that.
SURE, DEAD = 0.98, 0.01
MOST = 60  # packets of one message in one slot
WORTHWHILE = 5e-4  # of a boundary's weight: a packet that adds less is not sent


def worth(spread: Spread) -> Matrix:
    """Slots x n x n: what each message carries; each boundary sums to 1 with what stays at home."""
    n, depth = spread.devices, len(spread.owners)
    ends = np.zeros((n, 1))
    ends[spread.coordinator] = 1.0
    widths = np.array(spread.widths, dtype=float)
    shares = np.hstack([ends, spread.counts() / widths, ends])
    found: Matrix = np.zeros((slots(spread), n, n))
    for b in range(depth + 1):
        found[b] = np.outer(shares[:, b], shares[:, b + 1])
        if b:
            found[depth + b] = found[b].T
    return found


def best_relays(prr: Matrix) -> tuple[NDArray[np.int64], Matrix]:
    """For each pair the device through which a packet most likely arrives, and how likely."""
    both = prr[:, :, None] * prr[None]  # from, through, to
    n = len(prr)
    both[np.arange(n), np.arange(n), :] = both[:, np.arange(n), np.arange(n)] = 0.0
    via = both.argmax(axis=1)
    return via, both.max(axis=1)


def spend(
    spread: Spread, prr: Matrix, budget: int, alive: NDArray[np.bool_] | None = None
) -> Routes:
    """The routes that deliver most for at most `budget` packets a batch.

    A message goes all direct or all relayed, whichever gives more per packet. `alive` says which
    devices may relay.
    """
    known = np.clip(prr, 0.0, SURE)
    hops = known if alive is None else known * alive[:, None] * alive
    via, relayed = best_relays(hops)
    direct = np.maximum(known, DEAD)
    by_relay = relayed / 2 > direct
    once = np.where(by_relay, relayed, direct)
    cost = np.where(by_relay, 2, 1)
    asked = np.argwhere(wanted(spread))
    s, d = asked[:, 1], asked[:, 2]
    first, price = once[s, d], cost[s, d]
    carried = worth(spread)[asked[:, 0], s, d]
    # Gains of the k-th packet of each message, best first, until the budget is spent.
    gains = (carried * first / price)[:, None] * (1 - first)[:, None] ** np.arange(MOST)
    order = np.argsort(-gains, axis=None, kind="stable")
    order = order[: int((gains >= WORTHWHILE).sum())]
    spent = np.cumsum(np.repeat(price, MOST)[order])
    taken = order[: np.searchsorted(spent, budget, side="right")]
    times = np.bincount(taken // MOST, minlength=len(asked))
    shape = (slots(spread), spread.devices, spread.devices)
    routes = Routes(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64), via)
    target = np.where(by_relay[s, d], 1, 0)
    for which, counts in ((0, routes.direct), (1, routes.relayed)):
        chosen = target == which
        counts[tuple(asked[chosen].T)] = times[chosen]
    return routes


def delivered(spread: Spread, routes: Routes, prr: Matrix) -> Matrix:
    """By slot: the share of the weight between two layers that is expected to be delivered."""
    known = np.clip(prr, 0.0, SURE)
    found: Matrix = (worth(spread) * chance(routes, known)).sum(axis=(1, 2))
    return found


def value(spread: Spread, routes: Routes, prr: Matrix) -> float:
    """What is expected to pass from end to end: input to output, and gradients back to the first layer.

    Layer by layer, what a device passes on is what reached it; so a device that hears nobody adds nothing,
    whatever it says to itself. 1 where all arrives; the geometric mean of both directions.
    """
    likely = chance(routes, np.clip(prr, 0.0, SURE))
    shares = spread.counts() / np.array(spread.widths, dtype=float)
    depth, c = shares.shape[1], spread.coordinator
    forth = likely[0, c].copy()  # how much of all it should hear reaches each device
    for b in range(1, depth):
        forth = (shares[:, b - 1] * forth) @ likely[b]
    back = likely[2 * depth, c].copy()
    for b in range(depth - 1, 0, -1):
        back = (shares[:, b] * back) @ likely[depth + b]
    out = float((shares[:, -1] * forth) @ likely[depth, :, c])
    return float(np.sqrt(out * float(shares[:, 0] @ back)))
