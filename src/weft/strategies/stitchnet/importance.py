"""How important neurons are, and what happens to a lost device's neurons: some are cloned to other devices.

    after = clone(spread, failed=4, importance=importance(weights), seed=1)

Clones start from the last recorded weights. All neurons of a horizontal device are cloned. Of any other
device only the most important quarter is cloned. A neuron's importance is the length of its vector of
incoming weights. Each clone goes to a random worker that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weft.fleet.radio import Matrix
from weft.strategies.stitchnet.mapping import NOBODY, Spread

CLONED_SHARE = 0.25  # the paper's T: the share that is cloned of a device that is not horizontal

Importance = Sequence[NDArray[np.float64]]  # by hidden layer: a number for each neuron
First = Literal["worst", "best"]


def importance(weights: Iterable[NDArray[np.floating]]) -> list[NDArray[np.float64]]:
    """The L2 norm of each neuron's incoming weights, by hidden layer."""
    return [np.linalg.norm(w.astype(np.float64), axis=1) for w in weights]


def failure_order(prr: Matrix, spread: Spread, first: First) -> list[int]:
    """The workers in the order of their connection to the coordinator, there and back."""
    c = spread.coordinator
    both = prr[:, c] * prr[c]
    order = sorted(spread.workers, key=lambda d: (both[d], d))
    return order if first == "worst" else order[::-1]


def drop(spread: Spread, failed: int) -> Spread:
    """The spread without a device and its neurons."""
    owners = tuple(np.where(o == failed, NOBODY, o) for o in spread.owners)
    return replace(
        spread,
        owners=owners,
        horizontal=tuple(d for d in spread.horizontal if d != failed),
        vertical=tuple(d for d in spread.vertical if d != failed),
    )


def clone(
    spread: Spread, failed: int, importance: Importance, seed: int = 0, share: float = CLONED_SHARE
) -> Spread:
    """The spread after a device is lost, with clones of all its neurons or of the most important ones.

    If no worker is left, nothing is cloned.
    """
    after = drop(spread, failed)
    workers = [d for d in spread.workers if d != failed]
    if not workers:
        return after
    keep = 1.0 if failed in spread.horizontal else share
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, 3, failed])))
    units = [
        (layer, int(u)) for layer in range(len(spread.owners)) for u in spread.units(failed, layer)
    ]
    units.sort(key=lambda u: -importance[u[0]][u[1]])
    owners = tuple(o.copy() for o in after.owners)
    for layer, unit in units[: round(keep * len(units))]:
        owners[layer][unit] = workers[random.randint(len(workers))]
    return replace(after, owners=owners)
