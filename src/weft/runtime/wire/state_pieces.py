"""Cuts weights and the optimizer's memory into pieces that fit into messages.

state_pieces(state, optimizer=False)     # large pieces
state_answer(state, memory)              # the same as the answer to `GetState`
kept_pieces(head, state, memory)         # copies, reported while others work: at most a megabyte each
Pieces().take(piece)                     # puts such pieces together again

Every piece has its own seal. So the pieces of an answer or a report are numbered: where one is missing,
doubled or out of turn, the whole is useless. Nobody takes a part of a state for all of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor

from weft.errors import InputError
from weft.runtime.wire import messages as msg
from weft.stored import tensors_in

PIECE_BYTES = 4 << 20  # of state per message: both ends hold a message several times
KEPT_BYTES = 1 << 20  # of a copy per report: other reports wait for one piece at most


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


def state_answer(state: dict[str, Tensor], memory: dict[str, Tensor]) -> Iterator[msg.StatePiece]:
    """Weights and the optimizer's memory as one answer: numbered pieces, and an empty one at the end."""
    number = 0
    for tensors, optimizer in ((state, False), (memory, True)):
        for piece in state_pieces(tensors, optimizer):
            yield msgspec.structs.replace(piece, number=number)
            number += 1
    yield msg.StatePiece(save_safetensors({}), last=True, number=number)


def kept_pieces(
    head: msg.Kept, state: dict[str, Tensor], memory: dict[str, Tensor]
) -> Iterator[msg.Kept]:
    """The pieces of a copy, each at most a megabyte and a few names long. `head` says whose copy it is."""
    before: msg.Kept | None = None
    number = 0
    for tensors, optimizer in ((state, False), (memory, True)):
        for data, cut in _small_pieces(tensors):
            if before is not None:
                yield before
            before = msgspec.structs.replace(
                head, data=data, optimizer=optimizer, last=False, number=number, cut=cut
            )
            number += 1
    yield msgspec.structs.replace(before or head, last=True)


def _small_pieces(tensors: dict[str, Tensor]) -> Iterator[tuple[bytes, msg.Cut | None]]:
    piece: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if tensor.nbytes > KEPT_BYTES:
            slices = torch.split(tensor.reshape(-1), KEPT_BYTES // tensor.element_size())
            for number, part in enumerate(slices, start=1):
                cut = msg.Cut(name, tuple(tensor.shape), number == len(slices))
                yield save_safetensors({"": part.contiguous()}), cut
            continue
        if piece and size + tensor.nbytes > KEPT_BYTES:
            yield save_safetensors(piece), None
            piece, size = {}, 0
        piece[name] = tensor.contiguous()
        size += tensor.nbytes
    if piece:
        yield save_safetensors(piece), None


class Pieces:
    """The pieces of one copy, until the last one has come. Only memory that has arrived is taken."""

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}
        self.memory: dict[str, Tensor] = {}
        self._slices: list[Tensor] = []  # of the tensor whose last slice has not come
        self._next = 0  # the number of the piece that comes next
        self._broken = False
        self.bytes = 0  # that have come

    def take(self, piece: msg.Kept) -> bool:
        """Whether the copy is whole with this piece. A piece that is missing, doubled or cannot be read makes
        it useless."""
        if piece.number != self._next:
            self._broken = True
        if self._broken:
            self.state, self.memory, self._slices, self.bytes = {}, {}, [], 0
            return False
        self._next += 1
        self.bytes += len(piece.data)
        tensors = self.memory if piece.optimizer else self.state
        try:
            if piece.cut is None:
                tensors.update(tensors_in(piece.data))
            else:
                self._slices.append(tensors_in(piece.data)[""])
                if piece.cut.last:
                    row, self._slices = torch.cat(self._slices), []
                    tensors[piece.cut.name] = row.reshape(piece.cut.shape)
        except (InputError, LookupError, TypeError, ValueError, RuntimeError):
            self._broken = True
        return piece.last and not self._broken
