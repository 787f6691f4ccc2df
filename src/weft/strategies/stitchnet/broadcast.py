"""Packets counted as broadcasts: all devices hear one transmission, each with the chance of its own link.

    broadcasts(routes)                             # transmissions of one batch
    air(spread, prr, budget=65)                    # the routes that deliver most for 65 transmissions

A device sends the same values to all receivers of a layer, so one packet is enough for all of them. The
gradients that it sends differ by receiver, but they travel together in one packet. A relay repeats once
what it heard, again to all. So a message that is relayed once costs two packets, for any number of
receivers. Counted as unicast (`paths.packets`), every receiver needs a packet of its own.
"""

from __future__ import annotations

import numpy as np

from weft.fleet.radio import Matrix
from weft.plans.delivery import Routes
from weft.strategies.stitchnet.budget import DEAD, SURE, WORTHWHILE, worth
from weft.strategies.stitchnet.mapping import Spread
from weft.strategies.stitchnet.paths import slots, wanted


def broadcasts(routes: Routes) -> int:
    """Transmissions of one batch: those of the senders in each slot, and those of relays."""
    sent = np.maximum(routes.direct.max(axis=2), routes.relayed.max(axis=2)).sum()
    again = 0
    for relay in np.unique(routes.via):
        again += int(np.where(routes.via == relay, routes.relayed, 0).max(axis=2).sum())
    return int(sent) + again


def air(spread: Spread, prr: Matrix, budget: int) -> Routes:
    """The routes that deliver most for at most `budget` broadcasts; the coordinator is the relay.

    In every slot a device may send several times, and the coordinator may repeat each packet once. The
    transmission with the best gain is added first, until the budget is spent.
    """
    n, c = spread.devices, spread.coordinator
    known = np.maximum(np.clip(prr, 0.0, SURE), DEAD)
    relay = np.outer(known[:, c], known[c])
    relay[c] = relay[:, c] = 0.0
    left = worth(spread) * wanted(spread)  # the weight that is expected to be still missing
    shape = (slots(spread), n)
    sent, again = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    gains = np.stack([(left * known).sum(axis=2), np.zeros(shape)])
    for _ in range(budget):
        kind, slot, source = np.unravel_index(int(gains.argmax()), gains.shape)
        if gains[kind, slot, source] < WORTHWHILE:
            break
        (again if kind else sent)[slot, source] += 1
        left[slot, source] *= 1 - (relay if kind else known)[source]
        # Nobody else's gain has changed. Only a packet that was sent can be repeated.
        missing, repeats = left[slot, source], again[slot, source] < sent[slot, source]
        gains[0, slot, source] = (missing * known[source]).sum()
        gains[1, slot, source] = (missing * relay[source]).sum() if repeats else 0.0
    asked = wanted(spread)
    relayed = asked & (relay[None] > 0)
    return Routes(
        np.where(asked, sent[:, :, None], 0),
        np.where(relayed, again[:, :, None], 0),
        np.full((n, n), c),
    )
