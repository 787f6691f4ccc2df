"""Packets counted as broadcasts: one transmission is heard by all, each receiver with its own link's chance.

    broadcasts(routes)                             # of a batch
    air(spread, prr, budget=65)                    # the routes that deliver most for so many

A device has the same values for every receiver of a layer, so one packet of it serves them all; its shares of
gradients differ, and travel together in one packet. A relay says what it heard once more, again to all. So a
message that is relayed once costs two packets, whatever the number of its receivers. Counted as unicast
(`paths.packets`) every receiver has a packet of its own.
"""

from __future__ import annotations

import numpy as np

from weft.fleet.radio import Matrix
from weft.plans.delivery import Routes
from weft.strategies.stitchnet.budget import DEAD, SURE, WORTHWHILE, worth
from weft.strategies.stitchnet.mapping import Spread
from weft.strategies.stitchnet.paths import slots, wanted


def broadcasts(routes: Routes) -> int:
    """Transmissions of one batch: what each device sends in each slot, and what relays say again."""
    own = np.maximum(routes.direct.max(axis=2), routes.relayed.max(axis=2)).sum()
    again = 0
    for relay in np.unique(routes.via):
        again += int(np.where(routes.via == relay, routes.relayed, 0).max(axis=2).sum())
    return int(own) + again


def air(spread: Spread, prr: Matrix, budget: int) -> Routes:
    """The routes that deliver most for at most `budget` broadcasts; the coordinator is the relay.

    In every slot a device may send several times, and of each packet the coordinator may say what it heard
    once more. The best gain first, until the budget is spent.
    """
    n, c = spread.devices, spread.coordinator
    known = np.maximum(np.clip(prr, 0.0, SURE), DEAD)
    relay = np.outer(known[:, c], known[c])
    relay[c] = relay[:, c] = 0.0
    carried = worth(spread) * wanted(spread)
    left = carried.copy()  # the weight that is expected not to have arrived yet
    shape = (slots(spread), n)
    sent, again = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for _ in range(budget):
        gains = np.stack([(left * known).sum(axis=2), (left * relay).sum(axis=2)])
        gains[1][again >= sent] = 0.0  # only what was sent can be said again
        kind, slot, source = np.unravel_index(int(gains.argmax()), gains.shape)
        if gains[kind, slot, source] < WORTHWHILE:
            break
        (again if kind else sent)[slot, source] += 1
        left[slot, source] *= 1 - (relay if kind else known)[source]
    asked = wanted(spread)
    relayed = asked & (relay[None] > 0)
    return Routes(
        np.where(asked, sent[:, :, None], 0),
        np.where(relayed, again[:, :, None], 0),
        np.full((n, n), c),
    )
