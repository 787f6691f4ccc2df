"""Plans whose batch norms share their statistics: all pieces meet at every norm, forward and backward.

    pi     F conv(s) | pool own, send ──► | recv total, pool | F norm(s) ...
    cloud  F conv(o) | pool own, recv, pool (add), send total | F norm(o) ...

The order is that of `staged`: segment by segment, all pieces forward, then all backward. A segment begins at
every norm. Backward, the sums of its gradients are pooled after the last piece; only then the
corrected gradients go on.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.errors import InputError
from weft.graph.optimizers.words import clips_norm
from weft.plans.plan import Plan
from weft.program.instructions import DONE, Instruction, Pool, Recv, Send, Tensor
from weft.program.lower.layers import LayerWriter
from weft.program.lower.layout import Layout, Piece, layout_of
from weft.program.lower.order import visits
from weft.program.passes.clip import with_clip
from weft.program.program import Program


def lower_synced(plan: Plan) -> Program:
    """The program of a plan with shared statistics."""
    layout = layout_of(plan)
    if not layout.split or plan.mode != "train":
        raise InputError("plan: norms are for training plans whose shards name their samples")
    writer = SyncedWriter(layout)
    code = {d: tuple(writer.code(d)) for d in plan.devices}
    if clips_norm(plan.optimizer):
        code = with_clip(code, layout)
    return Program(plan=plan, code=code)


class SyncedWriter(LayerWriter):
    """Spells out a plan with shared statistics, device by device."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.sums = dict(layout.plan.norms)

    def code(self, device: str) -> Iterator[Instruction]:
        layout = self.layout
        if device in self.told:
            yield Recv(DONE, layout.root(0), lag=self.plan.ahead)
        for piece in layout.pieces:
            if piece.source == device != piece.devices[0]:
                yield self.load(piece)
                yield from self.leave(piece, 0, piece.devices[0])
        held = layout.held_by(device)
        for g in held:
            yield from self.all_forward(device, g)
        for g in reversed(held):
            yield from self.all_backward(device, g)
            yield from self.give(device, g)
        for g in reversed(held):
            yield from self.update(device, g)
        if device == layout.root(0):
            yield from (Send(DONE, source, bytes=0) for source in self.told)

    def pieces(self, device: str, g: int) -> list[Piece]:
        """A device's pieces of a segment: its own first, those that must still travel last."""
        own = [p for p in self.layout.pieces if p.devices[g] == device]
        return sorted(own, key=lambda p: visits(p.devices, g))

    def all_forward(self, device: str, g: int) -> Iterator[Instruction]:
        pieces = self.pieces(device, g)
        if self.layout.segments[g][0] not in self.sums:
            for piece in pieces:
                yield from self.forward(device, piece, g)
            return
        for piece in pieces:
            yield from self.begin(device, piece, g)
        yield from self.pool(device, g, pieces, back=False)
        for piece in pieces:
            yield from self.compute(device, piece, g)

    def all_backward(self, device: str, g: int) -> Iterator[Instruction]:
        pieces = self.pieces(device, g)[::-1]
        pooled = self.layout.segments[g][0] in self.sums and g > 0  # samples need no gradient
        for piece in pieces:
            yield from self.return_(device, piece, g)
            if not pooled:
                yield from self.send_back(device, piece, g)
        if pooled:
            yield from self.pool(device, g, pieces, back=True)
            for piece in pieces:
                yield from self.send_back(device, piece, g)

    def pool(self, device: str, g: int, pieces: list[Piece], back: bool) -> Iterator[Instruction]:
        """Own sums to the root; the root adds them up and sends the total to all."""
        at, root = self.layout.segments[g][0], self.layout.root(g)
        size, micros = self.sums[at], tuple(piece.micro for piece in pieces)

        def tensor(rank: int, part: int = 0) -> Tensor:
            return Tensor("dnorm" if back else "norm", at, rank, part=part)

        own, total = tensor(self.rank[device]), tensor(self.rank[root], 1)
        yield Pool(own, micros)
        others = [d for d in self.layout.holders(g) if d != root]
        if device != root:
            yield Send(own, root, size)
            yield Recv(total, root)
            yield Pool(tensor(self.rank[device], 2), micros, (total,))
            return
        for other in others:
            yield Recv(tensor(self.rank[other]), other)
        yield Pool(total, micros, (own, *(tensor(self.rank[d]) for d in others)))
        for other in others:
            yield Send(total, other, size)
