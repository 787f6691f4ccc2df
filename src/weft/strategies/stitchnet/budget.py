"""How a budget of packets is best spent: the expected weight that is delivered, packet by packet.

    routes = spend(spread, prr, budget=200)
    value(spread, routes, prr)         # near 1 where every message is nearly sure to arrive

Packets are counted as unicast here; `broadcast.py` counts those that every receiver hears.

A message from device s to device d carries the weights between their neurons. Counted with weights of equal
size, its worth is (share of the layer that s owns) x (share of the next layer that d owns), so every boundary
is worth 1. Each further packet of a message adds worth x (chance that it is the first to arrive), which falls
with every packet; taking the best gain per packet first is therefore optimal up to the last relayed packet.
"""

from __future__ import annotations

from dataclasses import dataclass

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
HALVINGS = 40  # of the interval in which the least gain lies that the budget still pays for
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


def best_relays(prr: Matrix, weight: Matrix | None = None) -> tuple[NDArray[np.int64], Matrix]:
    """For each pair the device through which a packet most likely arrives, and how likely.

    `weight` makes some relays more welcome than others; one with weight 0 never relays.
    """
    both = prr[:, :, None] * prr[None]  # from, through, to
    n = len(prr)
    both[np.arange(n), np.arange(n), :] = both[:, np.arange(n), np.arange(n)] = 0.0
    via = (both if weight is None else both * weight[None, :, None]).argmax(axis=1)
    likely = np.take_along_axis(both, via[:, None], axis=1)[:, 0]
    return via, likely if weight is None else likely * (weight[via] > 0)


@dataclass(frozen=True)
class Ways:
    """Between every two devices: whether a packet goes by a relay, by which, and how likely it arrives."""

    via: NDArray[np.int64]
    by_relay: NDArray[np.bool_]
    once: Matrix
    price: NDArray[np.int64]  # packets: 1 direct, 2 relayed


def best_ways(
    prr: Matrix, alive: NDArray[np.bool_] | None = None, weight: Matrix | None = None
) -> Ways:
    """The way of each pair that delivers most per packet. `alive` says which devices may relay."""
    known = np.clip(prr, 0.0, SURE)
    hops = known if alive is None else known * alive[:, None] * alive
    via, relayed = best_relays(hops, weight)
    direct = np.maximum(known, DEAD)
    by_relay = relayed / 2 > direct
    return Ways(via, by_relay, np.where(by_relay, relayed, direct), np.where(by_relay, 2, 1))


def spend(
    spread: Spread,
    prr: Matrix,
    budget: int,
    alive: NDArray[np.bool_] | None = None,
    ways: Ways | None = None,
) -> Routes:
    """The routes that deliver most for at most `budget` packets a batch.

    A message goes all direct or all relayed, as `ways` says (found here where not given).
    """
    ways = best_ways(prr, alive) if ways is None else ways
    asked = np.argwhere(wanted(spread))
    s, d = asked[:, 1], asked[:, 2]
    first, price = ways.once[s, d], ways.price[s, d]
    gain = worth(spread)[asked[:, 0], s, d] * first / price
    times = _affordable(gain, 1 - first, price, budget)
    shape = (slots(spread), spread.devices, spread.devices)
    routes = Routes(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64), ways.via)
    relayed = ways.by_relay[s, d]
    for counts, chosen in ((routes.direct, ~relayed), (routes.relayed, relayed)):
        counts[tuple(asked[chosen].T)] = times[chosen]
    return routes


def _affordable(
    gain: Matrix, missed: Matrix, price: NDArray[np.int64], budget: int
) -> NDArray[np.int64]:
    """How often each message is sent: the k-th packet adds gain * missed ** k, the best first.

    All packets that add at least as much as some least gain are taken; it is found by halving. What is then
    left of the budget goes to the next best, as far as it lasts.
    """
    if not len(gain):
        return np.zeros(0, dtype=np.int64)
    log_gain, log_missed = np.log(np.maximum(gain, 1e-300)), np.log(missed)

    def times(least: float) -> NDArray[np.int64]:
        count = np.floor((least - log_gain) / log_missed) + 1
        found: NDArray[np.int64] = np.where(log_gain < least, 0, np.minimum(count, MOST))
        return found.astype(np.int64)

    low = float(np.log(WORTHWHILE))
    if int(times(low) @ price) <= budget:
        return times(low)
    high = max(low, float(log_gain.max())) + 1e-9
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if int(times(middle) @ price) <= budget:
            high = middle
        else:
            low = middle
    found = times(high)
    following = np.argsort(-(log_gain + found * log_missed), kind="stable")
    fits = np.cumsum(price[following]) <= budget - int(found @ price)
    found[following[fits]] += 1
    return found


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
    return float(_passing(spread, likely[None])[0])


def without_each(spread: Spread, routes: Routes, prr: Matrix, silent: NDArray[np.int64]) -> Matrix:
    """The same with each of the devices `silent` in turn, while the others know nothing of it.

    Its neurons are missing, and so is every message that goes through it.
    """
    known = np.clip(prr, 0.0, SURE)
    direct = Routes(routes.direct, 0 * routes.relayed, routes.via)
    lost_relay = routes.via[None] == silent[:, None, None]
    likely = np.where(lost_relay[:, None], chance(direct, known)[None], chance(routes, known)[None])
    turn = np.arange(len(silent))
    likely[turn, :, silent] = 0.0
    likely[turn, :, :, silent] = 0.0
    return _passing(spread, likely)


def _passing(spread: Spread, likely: Matrix) -> Matrix:
    """For several matrices of chances (cases x slots x n x n): what passes from end to end."""
    shares = spread.counts() / np.array(spread.widths, dtype=float)
    depth, c = shares.shape[1], spread.coordinator
    forth = likely[:, 0, c]  # how much of all it should hear reaches each device
    for b in range(1, depth):
        forth = np.matmul((shares[:, b - 1] * forth)[:, None], likely[:, b])[:, 0]
    back = likely[:, 2 * depth, c]
    for b in range(depth - 1, 0, -1):
        back = np.matmul((shares[:, b] * back)[:, None], likely[:, depth + b])[:, 0]
    out = (shares[:, -1] * forth * likely[:, depth, :, c]).sum(axis=1)
    found: Matrix = np.sqrt(out * (back @ shares[:, 0]))
    return found
