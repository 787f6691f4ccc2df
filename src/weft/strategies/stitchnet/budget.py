"""How to spend a budget of packets so that the most weight is expected to be delivered.

    routes = spend(spread, prr, budget=200)
    value(spread, routes, prr)         # near 1 if every message is nearly sure to arrive

Here packets are counted as unicast; `broadcast.py` counts packets that every receiver hears.

A message from device s to device d carries the weights between their neurons. All weights count the
same. So a message is worth (share of the layer that s owns) x (share of the next layer that d owns), and
each boundary is worth 1. One more packet of a message adds worth x (chance that this packet is the first
to arrive). This gain falls with every packet. Therefore taking the best gain per packet first is
optimal, up to the last relayed packet.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.fleet.radio import Matrix
from weft.plans.delivery import Routes, chance
from weft.strategies.stitchnet.airtime import SlotTime, Ways
from weft.strategies.stitchnet.mapping import Spread
from weft.strategies.stitchnet.paths import slots, wanted

# Fifty probes cannot tell a sure link from a link that loses one packet in fifty, nor a dead link from one
# that delivers one in fifty. So no link counts as better than SURE or worse than DEAD.
SURE, DEAD = 0.98, 0.01
MOST = 60  # packets of one message in one slot
HALVINGS = 40  # steps of the search for the least gain that the budget still pays for
WORTHWHILE = 5e-4  # a packet that adds less than this share of a boundary's weight is not sent


def worth(spread: Spread) -> Matrix:
    """Slots x n x n: the worth of each message. A boundary sums to 1, with the values that are not sent."""
    n, depth = spread.devices, len(spread.owners)
    ends = np.zeros((n, 1))
    ends[spread.coordinator] = 1.0
    widths = np.array(spread.widths, dtype=float)
    shares = np.hstack([ends, spread.counts() / widths, ends])
    worths: Matrix = np.zeros((slots(spread), n, n))
    for b in range(depth + 1):
        worths[b] = np.outer(shares[:, b], shares[:, b + 1])
        if b:
            worths[depth + b] = worths[b].T
    return worths


def best_relays(prr: Matrix, weight: Matrix | None = None) -> tuple[NDArray[np.int64], Matrix]:
    """For each pair of devices: the relay through which a packet most likely arrives, and that chance.

    `weight` prefers some relays to others. A device with weight 0 never relays.
    """
    both = prr[:, :, None] * prr[None]  # from, through, to
    n = len(prr)
    both[np.arange(n), np.arange(n), :] = both[:, np.arange(n), np.arange(n)] = 0.0
    via = (both if weight is None else both * weight[None, :, None]).argmax(axis=1)
    likely = np.take_along_axis(both, via[:, None], axis=1)[:, 0]
    return via, likely if weight is None else likely * (weight[via] > 0)


def best_ways(
    prr: Matrix, alive: NDArray[np.bool_] | None = None, weight: Matrix | None = None
) -> Ways:
    """For each pair of devices, the way that delivers most per packet. `alive` says who may relay."""
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
    slot: SlotTime | None = None,
) -> Routes:
    """The routes that deliver most for at most `budget` packets a batch.

    All packets of a message go the same way, direct or relayed, as in `ways` (computed if None). With `slot`
    a message is sent no more often than fits into that time, but once at least.
    """
    ways = best_ways(prr, alive) if ways is None else ways
    asked = np.argwhere(wanted(spread))
    s, d = asked[:, 1], asked[:, 2]
    first, price = ways.once[s, d], ways.price[s, d]
    gain = worth(spread)[asked[:, 0], s, d] * first / price
    most = np.full(len(asked), MOST) if slot is None else slot.times(spread, asked, ways, MOST)
    times = _affordable(gain, 1 - first, price, budget, most)
    shape = (slots(spread), spread.devices, spread.devices)
    routes = Routes(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64), ways.via)
    relayed = ways.by_relay[s, d]
    for counts, chosen in ((routes.direct, ~relayed), (routes.relayed, relayed)):
        counts[tuple(asked[chosen].T)] = times[chosen]
    return routes


def _affordable(
    gain: Matrix,
    missed: Matrix,
    price: NDArray[np.int64],
    budget: int,
    most: NDArray[np.int64],
) -> NDArray[np.int64]:
    """How often each message is sent. Its k-th packet adds gain * missed ** k; the best are sent first.

    No message is sent more often than `most` says. All packets that add at least a certain least gain are
    sent. That gain is searched by halving. The rest of the budget is spent on the next best packets.
    """
    if not len(gain):
        return np.zeros(0, dtype=np.int64)
    log_gain, log_missed = np.log(np.maximum(gain, 1e-300)), np.log(missed)

    def times(least: float) -> NDArray[np.int64]:
        count = np.floor((least - log_gain) / log_missed) + 1
        counts: NDArray[np.int64] = np.where(log_gain < least, 0, np.minimum(count, most))
        return counts.astype(np.int64)

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
    counts = times(high)
    following = np.argsort(-(log_gain + counts * log_missed), kind="stable")
    following = following[counts[following] < most[following]]
    fits = np.cumsum(price[following]) <= budget - int(counts @ price)
    counts[following[fits]] += 1
    return counts


def delivered(spread: Spread, routes: Routes, prr: Matrix) -> Matrix:
    """By slot: the share of the weight between two layers that is expected to be delivered."""
    known = np.clip(prr, 0.0, SURE)
    shares: Matrix = (worth(spread) * chance(routes, known)).sum(axis=(1, 2))
    return shares


def value(spread: Spread, routes: Routes, prr: Matrix) -> float:
    """The weight expected to pass from end to end: input to output, and gradients back to the first layer.

    A device passes on only what reached it, layer by layer. So a device that hears nobody adds nothing,
    although its messages to itself arrive. The value is 1 if everything arrives. It is the geometric mean
    of both directions.
    """
    likely = chance(routes, np.clip(prr, 0.0, SURE))
    return float(_passing(spread, likely[None])[0])


def without_each(spread: Spread, routes: Routes, prr: Matrix, silent: NDArray[np.int64]) -> Matrix:
    """The same with each device of `silent` missing in turn, before the others notice it.

    Its neurons are missing, and so are all messages that it would relay.
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
    """For several cases of chances (cases x slots x n x n): what passes from end to end."""
    shares = spread.counts() / np.array(spread.widths, dtype=float)
    depth, c = shares.shape[1], spread.coordinator
    forth = likely[:, 0, c]  # by device: the share that reaches it of all that it should hear
    for b in range(1, depth):
        forth = np.matmul((shares[:, b - 1] * forth)[:, None], likely[:, b])[:, 0]
    back = likely[:, 2 * depth, c]
    for b in range(depth - 1, 0, -1):
        back = np.matmul((shares[:, b] * back)[:, None], likely[:, depth + b])[:, 0]
    out = (shares[:, -1] * forth * likely[:, depth, :, c]).sum(axis=1)
    passing: Matrix = np.sqrt(out * (back @ shares[:, 0]))
    return passing
