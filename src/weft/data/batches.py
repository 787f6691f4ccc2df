"""Which samples make up a minibatch: an endless shuffled stream that needs no history.

    batch_indices(60000, 128, step=0, seed=7)
    owned_indices(60000, (96, 32), 1, step=0, seed=7)      # the share of the second of two owners

Every epoch is a permutation of all samples and epochs follow each other without a gap, so nothing
is dropped. The answer is a function of its arguments alone: any device, joining at any step, finds
the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from weft.errors import InputError


def batch_indices(n: int, batch: int, step: int, seed: int) -> Tensor:
    """Indices (int64) of minibatch number `step`, counted from 0, out of n samples."""
    for name, value, least in (
        ("n", n, 1),
        ("batch", batch, 1),
        ("step", step, 0),
        ("seed", seed, 0),
    ):
        if value < least:
            raise InputError(f"batch_indices: {name} is {value}; at least {least} is allowed")
    start, stop = step * batch, (step + 1) * batch
    pieces = [
        _permutation(n, epoch, seed)[max(start - epoch * n, 0) : stop - epoch * n]
        for epoch in range(start // n, (stop - 1) // n + 1)
    ]
    return torch.cat(pieces)  # always a copy, so the cached permutations stay untouched


def owned_rows(n: int, shares: Sequence[int]) -> list[tuple[int, int]]:
    """Which of n samples belong to each of several owners: neighbours, in proportion to their shares.

    >>> owned_rows(100, (3, 1))
    [(0, 75), (75, 100)]
    """
    ends = [n * sum(shares[: k + 1]) // sum(shares) for k in range(len(shares))]
    rows = list(zip([0, *ends], ends, strict=False))
    if any(first == end for first, end in rows):
        raise InputError(f"{n} samples are too few for {len(shares)} devices with data")
    return rows


def owned_indices(n: int, shares: Sequence[int], owner: int, step: int, seed: int) -> Tensor:
    """One owner's share of minibatch `step`: out of its own samples alone."""
    first, end = owned_rows(n, shares)[owner]
    return first + batch_indices(end - first, shares[owner], step, seed)


def joint_indices(n: int, shares: Sequence[int], step: int, seed: int) -> Tensor:
    """The whole minibatch of several owners: their shares, one after the other."""
    return torch.cat([owned_indices(n, shares, owner, step, seed) for owner in range(len(shares))])


@lru_cache(maxsize=16)
def _permutation(n: int, epoch: int, seed: int) -> Tensor:
    # RandomState's streams are frozen for good; newer generators may differ between versions of
    # numpy or torch, and then the devices of a fleet would disagree on the samples.
    bits = np.random.MT19937(np.random.SeedSequence([seed, epoch]))
    order = np.random.RandomState(bits).permutation(n)
    return torch.from_numpy(order.astype(np.int64))
