"""Joins tensors from pieces of others. Lost pieces may be replaced by copies, or the rest is rescaled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft.errors import WeftError
from weft.program.instructions import Stitch, Tensor
from weft.runtime.node.tensors import Values


def stitched(
    i: Stitch, step: int, use: Callable[[Tensor], Values], heard: Callable[[Tensor], bool]
) -> dict[str, torch.Tensor]:
    """Joins or adds the pieces of each value. `use` reads a tensor, and counts the read. `heard` says whether
    a tensor is the one that was sent, not a replacement."""
    found: dict[str, list[torch.Tensor]] = {}
    dims: dict[str, int] = {}
    for piece in i.pieces:
        t = piece.tensor
        held = use(t).get(piece.value)
        if held is None or held.dim() <= piece.dim or held.shape[piece.dim] < piece.last:
            has = "nothing" if held is None else f"shape {tuple(held.shape)}"
            raise WeftError(
                f"{t} of minibatch {step} has {has} of {piece.value}; places {piece.first} to "
                f"{piece.last} of dimension {piece.dim} are needed"
            )
        strip = held.narrow(piece.dim, piece.first, piece.last - piece.first)
        found.setdefault(piece.value, []).append(strip)
        dims[piece.value] = piece.dim
    made = {
        value: strips[0] if len(strips) == 1
        else torch.stack(strips).sum(0) if i.add
        else torch.cat(strips, dims[value])
        for value, strips in found.items()
    }  # fmt: skip
    for spare in reversed(i.spares):  # the first copy that arrived counts: it is written last
        held = use(spare.tensor)[spare.value]
        if not heard(spare.missing) and heard(spare.tensor):
            into, places = torch.tensor(spare.into), torch.tensor(spare.places)
            copy = held.index_select(spare.dim, places)
            made[spare.value] = made[spare.value].index_copy(spare.dim, into, copy)
    if i.shares:
        came = sum(
            share for piece, share in zip(i.pieces, i.shares, strict=True) if heard(piece.tensor)
        )
        made = {value: x * (i.expected / came) if came else x for value, x in made.items()}
    return made
