"""Improves an order of devices by swapping two of them, again and again.

best_by_swaps(order, swaps, price=priced, worth=lambda spread: spread.value)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Priced = TypeVar("Priced")
Swap = tuple[int, int]  # two places of the order

LOOKS = 40_000  # a limit for the search: devices x devices x orders that are priced
GAIN = 1e-9  # a smaller gain is rounding


def best_by_swaps(
    order: list[int],
    swaps: list[Swap],
    price: Callable[[list[int]], Priced],
    worth: Callable[[Priced], float],
    devices: int,
) -> Priced:
    """The best that `price` gives for an order, after all swaps that make it worth more.

    A fleet of many `devices` is dear to price, so fewer orders are tried.
    """
    best = price(order)
    looks, better = LOOKS // devices**2, True
    while better and looks > 0:
        better = False
        for i, j in spaced(swaps, looks):
            looks -= 1
            other = list(order)
            other[i], other[j] = other[j], other[i]
            candidate = price(other)
            if worth(candidate) > worth(best) + GAIN:
                best, order, better = candidate, other, True
    return best


def spaced(swaps: list[Swap], looks: int) -> list[Swap]:
    """At most `looks` swaps, chosen evenly over all, so that no device is always left out.

    >>> spaced([(0, 1), (0, 2), (1, 2)], 2)
    [(0, 1), (0, 2)]
    """
    if len(swaps) <= looks:
        return swaps
    return [swaps[k * len(swaps) // looks] for k in range(looks)]
