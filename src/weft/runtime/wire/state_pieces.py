"""Cuts weights and the optimizer's memory into pieces that fit into messages."""

from __future__ import annotations

from collections.abc import Iterator

from safetensors.torch import save as save_safetensors
from torch import Tensor

from weft.runtime.wire import messages as msg

PIECE_BYTES = 64 << 20  # of state per reply


def chosen(
    state: dict[str, Tensor], memory: dict[str, Tensor], names: set[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and buffers of these names, and the optimizer's memory of them."""
    return (
        {n: t for n, t in state.items() if n in names},
        {k: t for k, t in memory.items() if k.rpartition("/")[0] in names},
    )


def state_pieces(tensors: dict[str, Tensor], optimizer: bool) -> Iterator[msg.StatePiece]:
    """State in pieces that fit into messages."""
    piece: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        piece[name] = tensor.contiguous()
        size += tensor.nbytes
        if size >= PIECE_BYTES:
            yield msg.StatePiece(save_safetensors(piece), optimizer)
            piece, size = {}, 0
    if piece:
        yield msg.StatePiece(save_safetensors(piece), optimizer)
