"""From a plan with lanes to a program: HierTrain's hybrid parallelism, and whatever splits samples.

HierTrain with s = pi (layers A), l = nuc (A, B) and o = cloud, one piece each:

    pi     load; x(l)>nuc  x(o)>cloud | F A(s)  send a+y | recv g  B A(s) | send wA | recv sum  update A
    nuc    recv x(l) | F A(l)  F B(l)  send b            | recv g  B B, A | send wB, wA | ...  update
    cloud  recv x(o)+y | F A(o) | recv a  F B(o) B(s) | recv b  F C(o, s, l)  losses
           B C, send g to nuc | B B, send g to pi | B A | recv w, add, send sums | update A B C

Gradients of a segment that several devices hold are added up at one of them (`Lanes.root`), which
sends the sum to the others: every copy then makes the same update. A loss is weighted by its
piece's share of the batch, so the sums are the whole batch's gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.codecs.registry import CodecName, coded_bytes
from weft.plans.plan import Plan
from weft.program.instructions import (
    DONE,
    Backward,
    Forward,
    Instruction,
    Load,
    Loss,
    Recv,
    Reduce,
    Send,
    Tensor,
    Update,
)
from weft.program.lower.lanes import Lanes, Piece, lanes_of
from weft.program.lower.order import Turn, orders
from weft.program.program import Program


def lower_lanes(plan: Plan) -> Program:
    writer = _Writer(lanes_of(plan))
    return Program(plan=plan, code={device: tuple(writer.code(device)) for device in plan.devices})


class _Writer:
    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.plan = lanes.plan
        self.orders = orders(lanes)
        self.final = len(lanes.segments) - 1
        self.rank = {device: n for n, device in enumerate(self.plan.devices)}
        self.last_backward = {
            (device, turn.segment): n
            for device, turns in self.orders.items()
            for n, turn in enumerate(turns)
            if turn.what == "backward"
        }
        # Nothing else comes back to a source without layers: it must be told when to go on.
        self.told = not self.orders.get(self.plan.source)

    def code(self, device: str) -> Iterator[Instruction]:
        if device == self.plan.source:
            yield from self.feeds()
        for n, turn in enumerate(self.orders.get(device, [])):
            if turn.what == "forward":
                yield from self.forward(device, turn)
            else:
                yield from self.backward(device, turn)
                if self.last_backward[device, turn.segment] == n:
                    yield from self.give(device, turn.segment)
        for g in reversed(range(len(self.lanes.segments))):
            if device in self.lanes.holders(g):
                yield from self.settle(device, g)
        if self.told and device == self.lanes.root(0):
            yield Send(DONE, self.plan.source, bytes=0)

    def feeds(self) -> Iterator[Instruction]:
        """What other devices begin with leaves first; the links are busy while we compute."""
        if self.told:
            yield Recv(DONE, self.lanes.root(0), lag=self.plan.ahead)
        for piece in self.lanes.pieces:
            if piece.way[0] != self.plan.source:
                yield self.load(piece)
                yield from self.leave(piece, 0, piece.way[0])

    def load(self, piece: Piece) -> Load:
        return Load(micro=piece.micro, samples=(piece.first, piece.first + piece.samples))

    def leave(self, piece: Piece, at: int, dest: str) -> Iterator[Instruction]:
        """An activation leaves the source; its labels ride along or follow."""
        end = piece.way[-1]
        act = self.act(piece, at, dest)
        target = Tensor("target", 0, piece.micro)
        size = piece.samples * self.plan.profile.target_bytes
        if end == dest:
            yield Send(act.tensor, dest, act.bytes + size, act.codec, also=target)
            return
        yield act
        if end != self.plan.source:
            yield Send(target, end, size)

    def rides(self, piece: Piece) -> bool:
        """Whether a piece's labels come in the message that leaves the source."""
        away = next((d for d in piece.way if d != self.plan.source), None)
        return away == piece.way[-1]

    def act(self, piece: Piece, at: int, dest: str) -> Send:
        raw = piece.samples * self.plan.profile.cut_bytes(at)
        codec: CodecName = self.plan.codec if at else self.plan.input_codec
        return Send(Tensor("act", at, piece.micro), dest, coded_bytes(raw, codec), codec)

    def forward(self, device: str, turn: Turn) -> Iterator[Instruction]:
        piece, g = self.lanes.pieces[turn.piece], turn.segment
        first, last = self.lanes.segments[g]
        before = piece.way[g - 1] if g else self.plan.source
        if before != device:
            yield self.arrive(piece, g, before)
        elif g == 0:
            yield self.load(piece)
        yield Forward(layers=(first, last), micro=piece.micro, samples=piece.samples)
        if g == self.final:
            if device != self.plan.source and not self.rides(piece):
                yield Recv(Tensor("target", 0, piece.micro), self.plan.source)
            yield Loss(micro=piece.micro, samples=piece.samples)
        elif piece.way[g + 1] != device:
            dest = piece.way[g + 1]
            # The labels leave with the piece's first step away from the source.
            if device == self.plan.source and set(piece.way[: g + 1]) == {device}:
                yield from self.leave(piece, last + 1, dest)
            else:
                yield self.act(piece, last + 1, dest)

    def arrive(self, piece: Piece, g: int, source: str) -> Recv:
        leaving = set(piece.way[:g]) <= {self.plan.source}  # a piece may come back and leave again
        also = Tensor("target", 0, piece.micro) if leaving and self.rides(piece) else None
        return Recv(Tensor("act", self.lanes.segments[g][0], piece.micro), source, also=also)

    def backward(self, device: str, turn: Turn) -> Iterator[Instruction]:
        piece, g = self.lanes.pieces[turn.piece], turn.segment
        first, last = self.lanes.segments[g]
        if g < self.final and piece.way[g + 1] != device:
            yield Recv(Tensor("grad", last + 1, piece.micro), piece.way[g + 1])
        yield Backward(layers=(first, last), micro=piece.micro, samples=piece.samples)
        if g and piece.way[g - 1] != device:
            raw = piece.samples * self.plan.profile.gradient_bytes(first)
            codec = self.plan.codec
            yield Send(Tensor("grad", first, piece.micro), piece.way[g - 1],
                       coded_bytes(raw, codec), codec)  # fmt: skip

    def give(self, device: str, g: int) -> Iterator[Instruction]:
        """A device's own gradient of a shared segment goes to who adds them up."""
        root = self.lanes.root(g)
        if device != root and len(self.lanes.holders(g)) > 1:
            yield self.weights("wgrad", g, self.rank[device], root)

    def settle(self, device: str, g: int) -> Iterator[Instruction]:
        """All copies of a segment get the same gradient and make the same update."""
        holders, root = self.lanes.holders(g), self.lanes.root(g)
        layers = self.lanes.segments[g]
        others = [d for d in holders if d != root]
        if device != root:
            total = self.tensor("wsum", g, self.rank[device])
            yield Recv(total, root)
            yield Reduce(layers=layers, parts=(total,), replace=True)
        elif others:
            parts = tuple(self.tensor("wgrad", g, self.rank[d]) for d in others)
            for part, other in zip(parts, others, strict=True):
                yield Recv(part, other)
            yield Reduce(layers=layers, parts=parts, codec=self.plan.gradient_codec)
            for other in others:
                yield self.weights("wsum", g, self.rank[other], other)
        yield Update(layers=layers)

    def tensor(self, kind: str, g: int, rank: int) -> Tensor:
        first, last = self.lanes.segments[g]
        return Tensor("wgrad" if kind == "wgrad" else "wsum", first, rank, last)

    def weights(self, kind: str, g: int, rank: int, dest: str) -> Send:
        first, last = self.lanes.segments[g]
        raw = sum(layer.param_bytes for layer in self.plan.profile.layers[first : last + 1])
        codec = self.plan.gradient_codec
        return Send(self.tensor(kind, g, rank), dest, coded_bytes(raw, codec), codec)
