"""Copies of neurons made before anything fails, for inference.

    holders = with_copies(spread, importance, share=0.25)
    holders[0][device, neuron]     # who computes it: its owner, and those with a copy

The devices that share a layer hear the same senders and speak to the same receivers, and a message costs
the same however much it carries: a copy on such a device takes no further packet, only computing. The most
important neurons of each device (by their incoming weights) are copied to every other device of their layer.
A receiver takes a neuron's value from its owner, or from the first copy that it hears.

Copies hold the weights of the moment they are made. While a network learns, keeping them alike would take a
message for every update, so they are for networks that have learned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.strategies.stitchnet.importance import Importance
from weft.strategies.stitchnet.mapping import NOBODY, Spread

Holders = tuple[NDArray[np.bool_], ...]  # by hidden layer: devices x neurons


def owners_only(spread: Spread) -> Holders:
    """Who computes each unit, where there are no copies: its owner."""
    devices = np.arange(spread.devices)[:, None]
    return tuple(owners[None] == devices for owners in spread.owners)


def with_copies(spread: Spread, importance: Importance, share: float) -> Holders:
    """Each device's best `share` of its neurons of a layer also on the layer's other devices."""
    found = owners_only(spread)
    for layer, holds in enumerate(found):
        sharing = np.flatnonzero(holds.any(axis=1))
        for device in sharing:
            units = spread.units(int(device), layer)
            best = units[np.argsort(-importance[layer][units])][: round(share * len(units))]
            holds[np.ix_(sharing, best)] = True
    return found


def without(holders: Holders, lost: list[int]) -> Holders:
    """What is left of the holders when devices are gone."""
    gone = np.isin(np.arange(len(holders[0])), lost)[:, None]
    return tuple(holds & ~gone for holds in holders)


def sources(
    holds: NDArray[np.bool_], owners: NDArray[np.int64], heard: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Whom a receiver takes each neuron from: batches x neurons, NOBODY where it hears no holder.

    `heard` is batches x devices: whose messages reached the receiver.
    """
    able = heard[:, :, None] & holds[None]  # batches x devices x neurons
    first = able.argmax(axis=1)
    owner = np.maximum(owners, 0)
    by_owner = np.take_along_axis(able, owner[None, None], axis=1)[:, 0] & (owners >= 0)
    found: NDArray[np.int64] = np.where(by_owner, owner, first)
    return np.where(able.any(axis=1), found, NOBODY)
