"""Several devices with data of their own: each has a share of every minibatch.

    owners_of(fleet, batch=32)      # (Owner("pi1", 20), Owner("pi2", 12)); empty with one device

The minibatch is the concatenation of the shares, in the order of the fleet file. A share is in proportion to
the `samples` that the fleet file says; where no device says any, shares are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct

from weft.errors import InputError
from weft.fleet.fleet import Fleet


class Owner(Struct, frozen=True):
    """A device with data of its own, and how many samples of each minibatch are its own."""

    device: str
    samples: int


def owners_of(fleet: Fleet, batch: int) -> tuple[Owner, ...]:
    """The devices with data and their shares; empty where one device has all of it."""
    devices = [device for device in fleet.devices if device.data]
    if len(devices) < 2:
        return ()
    silent = [device.name for device in devices if device.samples is None]
    if silent and len(silent) < len(devices):
        raise InputError(
            f"the fleet says samples of some devices with data and not of {', '.join(silent)}: "
            "give samples to all of them or to none"
        )
    shares = in_proportion(batch, [device.samples or 1 for device in devices])
    for device, share in zip(devices, shares, strict=True):
        if share == 0:
            raise InputError(
                f"batch {batch} has no sample for {device.name}, one of {len(devices)} devices with "
                "data: take a larger batch, or change samples in the fleet file"
            )
    return tuple(Owner(device.name, share) for device, share in zip(devices, shares, strict=True))


def in_proportion(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers that add up to `total`: rounded down, the rest to the largest remainders.

    >>> in_proportion(10, [1, 1, 2])
    [3, 2, 5]
    """
    whole = sum(weights)
    counts = [total * weight // whole for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda n: -(total * weights[n] % whole))
    for n in by_rest[: total - sum(counts)]:
        counts[n] += 1
    return counts


def first_samples(shares: Sequence[int]) -> list[int]:
    """Where each share begins.

    >>> first_samples([3, 2, 5])
    [0, 3, 5]
    """
    return list(accumulate(shares, initial=0))[:-1]
