"""Ways to deal a network's neurons to devices in a given order.

windows((64, 64, 64, 64), order, holders=2)     # two neighbours in the order share each layer
rounds(widths, order, capacity, holders=2)      # the same for unequal devices
dealt(widths, order, capacity)                  # layer by layer, few devices per layer
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from weft.strategies.stitchnet.mapping import NOBODY, Owners


def windows(widths: Sequence[int], order: Sequence[int], holders: int) -> Owners:
    """Each layer is shared by `holders` devices that follow each other in the order, which is a circle.

    A device that has a part in two layers gets half as much of each.

    >>> [o.tolist() for o in windows((3, 3), [5, 3, 4], 2)]
    [[5, 3, 3], [4, 4, 5]]
    """
    starts = [round(layer * len(order) / len(widths)) for layer in range(len(widths))]
    layers = [[order[(begin + k) % len(order)] for k in range(holders)] for begin in starts]
    times = Counter(device for devices in layers for device in devices)
    owners = []
    for width, devices in zip(widths, layers, strict=True):
        share = np.array([1 / times[device] for device in devices])
        ends = np.round(np.cumsum(share) / share.sum() * width).astype(np.int64)
        owners.append(np.repeat(devices, np.diff(ends, prepend=0)))
    return tuple(owners)


def rounds(
    widths: Sequence[int], order: Sequence[int], capacity: Sequence[float], holders: int
) -> Owners:
    """For unequal devices: neurons are dealt layer by layer in proportion to `capacity`.

    If one round gives a layer to fewer than `holders` devices, there are several rounds. Each round begins
    further on in the order.
    """
    times = ceil(holders * len(widths) / len(order))
    parts = [np.array_split(np.arange(width), times) for width in widths]
    owners = [np.full(width, NOBODY) for width in widths]
    for turn in range(times):
        shift = round(turn * len(order) / max(len(widths), times)) % len(order)
        rotated = [*order[shift:], *order[:shift]]
        counts = [len(part[turn]) for part in parts]
        for layer, dealt_out in enumerate(dealt(counts, rotated, capacity)):
            owners[layer][parts[layer][turn]] = dealt_out
    return tuple(owners)


def dealt(
    widths: Sequence[int], order: Sequence[int], capacity: Sequence[float] | NDArray[np.float64]
) -> Owners:
    """Neurons are dealt layer by layer to devices in order, in proportion to `capacity`.

    >>> [o.tolist() for o in dealt((2, 4), [5, 3, 4], [1] * 6)]
    [[5, 5], [3, 3, 4, 4]]
    """
    total = sum(widths)
    share = np.array([capacity[d] for d in order], dtype=float)
    ends = np.round(np.cumsum(share) / share.sum() * total).astype(np.int64)
    owner = np.repeat(np.array(order), np.diff(ends, prepend=0))
    return tuple(np.split(owner, np.cumsum(widths)[:-1]))
