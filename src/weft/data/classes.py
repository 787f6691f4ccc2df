"""Which samples a peer has when classes are dealt out over peers.

class_rows(labels, [(0, 1), (1, 2)], "split", seed=0)      # row numbers by peer
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from weft.errors import InputError

Deal = Literal["replicate", "split"]


def class_rows(
    labels: Tensor,
    sets: Sequence[Sequence[int]],
    deal: Deal,
    *,
    seed: int = 0,
    shares: Sequence[float] | None = None,
) -> list[Tensor]:
    """Rows of each peer's samples, ascending.

    `replicate` gives each owner of a class all its samples. `split` parts them between the owners,
    equally or by `shares` (one weight per peer).
    """
    if deal not in get_args(Deal):
        raise InputError(f"class data {deal!r} is not one of {', '.join(get_args(Deal))}")
    weights = [1.0] * len(sets) if shares is None else list(shares)
    generator = torch.Generator().manual_seed(seed)
    found: list[list[Tensor]] = [[] for _ in sets]
    for label in sorted({label for held in sets for label in held}):
        holders = [peer for peer, held in enumerate(sets) if label in held]
        rows = (labels == label).nonzero()[:, 0]
        if deal == "replicate":
            parts = [rows] * len(holders)
        else:
            rows = rows[torch.randperm(len(rows), generator=generator)]
            ends = torch.tensor([weights[peer] for peer in holders]).cumsum(0)
            cuts = (ends / ends[-1] * len(rows)).round().long().tolist()
            parts = list(torch.tensor_split(rows, cuts[:-1]))
        for peer, part in zip(holders, parts, strict=True):
            found[peer].append(part)
    return [torch.cat(parts).sort().values for parts in found]
