"""Copies of neurons that are made before anything fails, for inference.

    holders = with_copies(spread, importance, share=0.25)
    holders[0][device, neuron]     # whether the device computes the neuron, as owner or as copy

Devices that share a layer hear the same senders and send to the same receivers. A message costs the same
however much it carries, so a copy on such a device costs computing but no packet. The most important
neurons of each device (by their incoming weights) are copied to all other devices of their layer. A
receiver takes a neuron's value from its owner, or from the first copy that it hears.

Copies hold the weights of the moment when they were made. In training, every update would need a
message to keep them equal. So copies are only for networks that are trained.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.strategies.stitchnet.importance import Importance
from weft.strategies.stitchnet.mapping import NOBODY, Spread

Holders = tuple[NDArray[np.bool_], ...]  # by hidden layer: devices x neurons


def owners_only(spread: Spread) -> Holders:
    """Without copies: only its owner computes a neuron."""
    devices = np.arange(spread.devices)[:, None]
    return tuple(owners[None] == devices for owners in spread.owners)


def with_copies(spread: Spread, importance: Importance, share: float) -> Holders:
    """The most important `share` of each device's neurons of a layer is also on the layer's other devices."""
    holders = owners_only(spread)
    for layer, holds in enumerate(holders):
        sharing = np.flatnonzero(holds.any(axis=1))
        for device in sharing:
            units = spread.units(int(device), layer)
            best = units[np.argsort(-importance[layer][units])][: round(share * len(units))]
            holds[np.ix_(sharing, best)] = True
    return holders


def without(holders: Holders, lost: list[int]) -> Holders:
    """The holders without the lost devices."""
    gone = np.isin(np.arange(len(holders[0])), lost)[:, None]
    return tuple(holds & ~gone for holds in holders)


def sources(
    holds: NDArray[np.bool_], owners: NDArray[np.int64], heard: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """From which device a receiver takes each neuron: batches x neurons, NOBODY if it hears no holder.

    `heard` is batches x devices: whether the device's message reached the receiver.
    """
    able = heard[:, :, None] & holds[None]  # batches x devices x neurons
    first = able.argmax(axis=1)
    owner = np.maximum(owners, 0)
    by_owner = np.take_along_axis(able, owner[None, None], axis=1)[:, 0] & (owners >= 0)
    chosen: NDArray[np.int64] = np.where(by_owner, owner, first)
    return np.where(able.any(axis=1), chosen, NOBODY)
