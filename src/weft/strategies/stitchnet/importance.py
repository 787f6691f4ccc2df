"""What happens to a lost device's neurons: some are cloned to others from their last recorded weights.

    after = clone(spread, failed=4, importance=importance(weights), seed=1)

A horizontal device's neurons are all cloned, of any other device's only the most important quarter (by the
length of their vector of incoming weights); each goes to a surviving worker drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weft.fleet.radio import Matrix
from weft.strategies.stitchnet.mapping import NOBODY, Spread

CLONED_SHARE = 0.25  # the paper's T: what is worth cloning of a device that is not horizontal

Importance = Sequence[NDArray[np.float64]]  # by hidden layer, of each neuron
First = Literal["worst", "best"]


def importance(weights: Iterable[NDArray[np.floating]]) -> list[NDArray[np.float64]]:
    """The L2 norm of each neuron's incoming weights, by hidden layer."""
    return [np.linalg.norm(w.astype(np.float64), axis=1) for w in weights]


def failure_order(prr: Matrix, spread: Spread, first: First) -> list[int]:
    """The workers by their connection to the coordinator, there and back."""
    c = spread.coordinator
    both = prr[:, c] * prr[c]
    order = sorted(spread.workers, key=lambda d: (both[d], d))
    return order if first == "worst" else order[::-1]


def drop(spread: Spread, failed: int) -> Spread:
    """The device is gone and with it its neurons."""
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
    """The spread after a device is lost and its neurons, or the most important, are cloned.

    With no worker left there is nowhere to clone to.
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
