"""The route of each message and its cost: direct, through a relay, or both.

    routes = plan_routes("subpath", prr, spread)
    messages(routes), packets(routes)       # per batch: 141 messages, about 200 packets
    chance(routes, delivery)                # of each message, n x n for each of the nine slots

A message is the values of one device for one batch, one boundary between layers and one receiver. A batch
of a network with L hidden layers has 2 L + 1 *slots*. Slot b is forward over boundary b (from layer b to
b + 1; layer 0 is the input). Slot L + b is backward over boundary b (from layer b + 1 to b). Nothing is
sent back to the input. In one slot a relay hears each source once and sends once to each receiver.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weft.fleet.radio import Matrix
from weft.plans.delivery import Routes, chance
from weft.strategies.stitchnet.mapping import Spread

Path = Literal["direct", "coordinator", "subpath"]


def slots(spread: Spread) -> int:
    """The number of time slots of a minibatch."""
    return 2 * len(spread.owners) + 1


def wanted(spread: Spread, itself: bool = False) -> NDArray[np.bool_]:
    """Slots x n x n: whether one device has values for another. With `itself`, also for itself."""
    holders = spread.holders()
    depth = len(spread.owners)
    needed = np.zeros((slots(spread), spread.devices, spread.devices), dtype=bool)
    for b in range(depth + 1):
        needed[b][np.ix_(holders[b], holders[b + 1])] = True
        if b:
            needed[depth + b][np.ix_(holders[b + 1], holders[b])] = True
    if not itself:
        needed &= ~np.eye(spread.devices, dtype=bool)
    return needed


def plan_routes(path: Path, prr: Matrix, spread: Spread) -> Routes:
    """Every message once: direct, or through the coordinator. `subpath` takes the likelier of the two."""
    n, c = spread.devices, spread.coordinator
    by_relay = np.outer(prr[:, c], prr[c])
    if path == "subpath":
        relay = by_relay > prr
    else:
        relay = np.full((n, n), path == "coordinator")
    relay[c, :] = relay[:, c] = False  # the coordinator needs no relay to itself
    asked = wanted(spread)
    return Routes(
        (asked & ~relay).astype(np.int64),
        (asked & relay).astype(np.int64),
        np.full((n, n), c),
    )


def messages(routes: Routes) -> int:
    """The number of messages of one batch, forward and backward."""
    return int(((routes.direct + routes.relayed) > 0).sum())


def packets(routes: Routes) -> int:
    """The number of packets of one batch: one for a direct message, two for a relayed one."""
    return int(routes.direct.sum() + 2 * routes.relayed.sum())


def mean_chance(routes: Routes, delivery: Matrix, spread: Spread) -> float:
    """The mean chance over all values between layers, with those that stay on their device."""
    return float(chance(routes, delivery)[wanted(spread, itself=True)].mean())


def arrived(routes: Routes, crossed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which messages arrive (steps x slots x n x n), from which packets cross each link.

    `crossed` is steps x attempts x slots x n x n. A device's values for itself always arrive.
    """
    n = len(routes.via)
    rows, columns = np.arange(n)[:, None], np.arange(n)[None]
    shape = crossed.shape[:1] + crossed.shape[2:]
    received: NDArray[np.bool_] = np.broadcast_to(np.eye(n, dtype=bool), shape).copy()
    relays = bool(routes.relayed.any())
    for attempt in range(crossed.shape[1]):
        once = crossed[:, attempt]
        received |= once & (routes.direct > attempt)
        if relays:
            up, down = once[..., rows, routes.via], once[..., routes.via, columns]
            received |= up & down & (routes.relayed > attempt)
    return received
