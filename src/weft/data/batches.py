"""Which samples make up a minibatch: an endless shuffled stream that needs no history.

    batch_indices(60000, 128, step=0, seed=7)

Every epoch is a permutation of all samples and epochs follow each other without a gap, so nothing
is dropped. The answer is a function of its arguments alone: any device, joining at any step, finds
the same samples.
"""

from __future__ import annotations

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


@lru_cache(maxsize=4)
def _permutation(n: int, epoch: int, seed: int) -> Tensor:
    # RandomState's streams are frozen for good; newer generators may differ between versions of
    # numpy or torch, and then the devices of a fleet would disagree on the samples.
    bits = np.random.MT19937(np.random.SeedSequence([seed, epoch]))
    order = np.random.RandomState(bits).permutation(n)
    return torch.from_numpy(order.astype(np.int64))
