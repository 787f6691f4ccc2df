"""Which way each message goes, and what that costs: direct, through a relay, or both.

    routes = plan_routes("subpath", prr, spread)
    messages(routes), packets(routes)       # per batch: 141 messages, about 200 packets
    chance(routes, delivery)                # of each message, n x n for each of the nine slots

A message is one device's values for one batch, one boundary between layers and one receiver. A batch of a
network with L hidden layers has 2 L + 1 *slots*: forward over boundary b (layer b to b + 1; layer 0 is
the input) in slot b, backward over boundary b (layer b + 1 to b) in slot L + b; nothing goes back to the
input. In one slot a relay hears each source once and sends once to each receiver.
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
    return 2 * len(spread.owners) + 1


def wanted(spread: Spread, itself: bool = False) -> NDArray[np.bool_]:
    """Slots x n x n: who has something for whom. With `itself`, also what stays where it is."""
    holders = spread.holders()
    depth = len(spread.owners)
    found = np.zeros((slots(spread), spread.devices, spread.devices), dtype=bool)
    for b in range(depth + 1):
        found[b][np.ix_(holders[b], holders[b + 1])] = True
        if b:
            found[depth + b][np.ix_(holders[b + 1], holders[b])] = True
    if not itself:
        found &= ~np.eye(spread.devices, dtype=bool)
    return found


def plan_routes(path: Path, prr: Matrix, spread: Spread) -> Routes:
    """Every message once: direct, or by the coordinator; `subpath` takes the likelier of the two."""
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
    """Messages of one batch, forward and backward."""
    return int(((routes.direct + routes.relayed) > 0).sum())


def packets(routes: Routes) -> int:
    """Packets of one batch: one for a direct message, two for a relayed one."""
    return int(routes.direct.sum() + 2 * routes.relayed.sum())


def mean_chance(routes: Routes, delivery: Matrix, spread: Spread) -> float:
    """The mean over all that one layer has for the next, what a device keeps for itself included."""
    return float(chance(routes, delivery)[wanted(spread, itself=True)].mean())


def arrived(routes: Routes, crossed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which messages arrive (steps x slots x n x n), given which packets cross each link.

    `crossed` is steps x attempts x slots x n x n. To oneself everything arrives.
    """
    n = len(routes.via)
    rows, columns = np.arange(n)[:, None], np.arange(n)[None]
    shape = crossed.shape[:1] + crossed.shape[2:]
    found: NDArray[np.bool_] = np.broadcast_to(np.eye(n, dtype=bool), shape).copy()
    relays = bool(routes.relayed.any())
    for attempt in range(crossed.shape[1]):
        once = crossed[:, attempt]
        found |= once & (routes.direct > attempt)
        if relays:
            up, down = once[..., rows, routes.via], once[..., routes.via, columns]
            found |= up & down & (routes.relayed > attempt)
    return found
