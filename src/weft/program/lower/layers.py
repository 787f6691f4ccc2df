"""From a plan of layers and samples to a program: a chain of stages, HierTrain's lanes, an inference.

    program = lower_layers(plan)
    program.code["pi"]       # load, forward, send, recv, backward, update

`order` decides when a device does what. This module writes what each action receives and sends.
Training, a phone with layers A and an edge server with layers B, two pieces, two in flight:

    phone | load 0  F 0  send a0+y0 | load 1  F 1  send a1+y1 | recv g0  B 0 | recv g1  B 1 | update A
    edge  | recv a0+y0  F 0  loss 0  B 0  send g0 | recv a1+y1  F 1  loss 1  B 1  send g1   | update B

HierTrain with s = pi (layers A), l = nuc (A, B) and o = cloud, one piece each:

    pi     load; x(l)>nuc  x(o)>cloud | F A(s)  send a+y | recv g  B A(s) | send wA | recv sum  update A
    nuc    recv x(l) | F A(l)  F B(l)  send b            | recv g  B B, A | send wB, wA | ...  update
    cloud  recv x(o)+y | F A(o) | recv a  F B(o) B(s) | recv b  F C(o, s, l)  losses
           B C, send g to nuc | B B, send g to pi | B A | recv w, add, send sums | update A B C

Labels (y) ride with the activation that leaves the source; where the loss is computed further on they
follow it in a message of their own, which crosses while the next device computes. A source without layers
is told when a minibatch is done, and stays `plan.ahead` minibatches ahead. Where several devices have data,
each piece has the source that its samples lie on.

If several devices hold a segment, one of them (`Layout.root`) adds up its gradients and sends the sum to the
others, so that every copy makes the same update. A loss is weighted by its piece's share of the batch, so the
sums are the whole batch's gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from weft.codecs.registry import coded_bytes
from weft.graph.optimizers.words import clips_norm
from weft.plans.plan import Plan
from weft.program.instructions import (
    DONE,
    Backward,
    Emit,
    Forward,
    Instruction,
    Kind,
    Load,
    Loss,
    Recv,
    Reduce,
    Send,
    Tensor,
    Update,
)
from weft.program.lower.actions import Action
from weft.program.lower.layout import Layout, Piece, layout_of
from weft.program.lower.order import orders
from weft.program.lower.sends import send_activation, send_gradient, send_labels
from weft.program.passes.clip import with_clip
from weft.program.passes.stale import with_lags
from weft.program.passes.standby import with_standby
from weft.program.program import Program


def lower_layers(plan: Plan) -> Program:
    """The program of a plan of layers and samples."""
    layout = layout_of(plan)
    writer = LayerWriter(layout)
    code = {device: tuple(writer.code(device)) for device in plan.devices}
    if plan.stale:
        code = with_lags(code, layout)
    if plan.standby:
        code = with_standby(code, layout)
    if clips_norm(plan.optimizer) and plan.mode == "train":
        code = with_clip(code, layout)
    return Program(plan=plan, code=code)


class LayerWriter:
    """Writes the actions of each device as instructions. Most methods yield the instructions of one
    action."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.plan = layout.plan
        self.train = self.plan.mode == "train"
        self.orders = orders(layout)
        self.final = len(layout.segments) - 1
        self.rank = {device: n for n, device in enumerate(self.plan.devices)}
        self.last_backward = {
            (device, action.segment): n
            for device, actions in self.orders.items()
            for n, action in enumerate(actions)
            if action.what == "backward"
        }
        # Nothing else comes back to a source without layers: it must be told when to go on.
        self.told = [s for s in self.plan.sources if self.train and not layout.held_by(s)]
        self._weights: dict[tuple[str, int, int], Tensor] = {}
        self._gradients: dict[int, int] = {}  # by segment: bytes of its gradient as one message

    def code(self, device: str) -> Iterator[Instruction]:
        if device in self.told:
            yield Recv(DONE, self.layout.root(0), lag=self.plan.ahead)
        for n, action in enumerate(self.orders[device]):
            yield from self.spell(device, action)
            what, _, g = action
            if what == "backward" and self.last_backward[device, g] == n:
                yield from self.give(device, g)
        if device == self.layout.root(0):
            yield from (Send(DONE, source, bytes=0) for source in self.told)

    def spell(self, device: str, action: Action) -> Iterator[Instruction]:
        what, number, g = action
        piece = self.layout.pieces[number]
        if what == "forward":
            return self.forward(device, piece, g)
        if what == "backward":
            return self.backward(device, piece, g)
        if what == "update":
            return self.update(device, g)
        return self.answer(piece) if what == "answer" else self.feed(piece)

    def feed(self, piece: Piece) -> Iterator[Instruction]:
        yield self.load(piece)
        yield from self.leave(piece, 0, piece.devices[0])

    def load(self, piece: Piece) -> Load:
        return Load(micro=piece.micro, samples=(piece.first, piece.first + piece.samples))

    # --- forward --------------------------------------------------------------------------------

    def forward(self, device: str, piece: Piece, g: int) -> Iterator[Instruction]:
        yield from self.begin(device, piece, g)
        yield from self.compute(device, piece, g)

    def begin(self, device: str, piece: Piece, g: int) -> Iterator[Instruction]:
        """What a segment reads comes, or is loaded."""
        before = piece.devices[g - 1] if g else piece.source
        if before != device:
            yield self.arrive(piece, g, before)
        elif g == 0:
            yield self.load(piece)

    def compute(self, device: str, piece: Piece, g: int) -> Iterator[Instruction]:
        """The forward pass itself, and what follows from it."""
        first, last = self.layout.segments[g]
        yield Forward(layers=(first, last), micro=piece.micro, samples=piece.samples)
        if g == self.final and self.train:
            if device != piece.source and not self.labels_ride(piece):
                yield Recv(Tensor("target", 0, piece.micro), piece.source)
            yield Loss(micro=piece.micro, samples=piece.samples)
            return
        after = piece.source if g == self.final else piece.devices[g + 1]
        if after == device:
            return
        if self.is_leaving(piece, g + 1) and device == piece.source:
            yield from self.leave(piece, last + 1, after)
        else:
            yield send_activation(self.plan, last + 1, piece.micro, piece.samples, after)

    def is_leaving(self, piece: Piece, g: int) -> bool:
        """Whether nobody but its source has computed anything of a piece before segment g."""
        return set(piece.devices[:g]) <= {piece.source}

    def leave(self, piece: Piece, at: int, dest: str) -> Iterator[Instruction]:
        """An activation leaves the source. In training its labels are sent with it or after it."""
        end = piece.devices[-1]
        act = send_activation(self.plan, at, piece.micro, piece.samples, dest)
        labels = send_labels(self.plan, piece.micro, piece.samples, end)
        if self.labels_ride(piece):
            yield msgspec.structs.replace(act, bytes=act.bytes + labels.bytes, also=labels.tensor)
            return
        yield act
        if self.train and end != piece.source:
            yield labels

    def labels_ride(self, piece: Piece) -> bool:
        """Whether a piece's labels come in the message that leaves the source."""
        away = next((d for d in piece.devices if d != piece.source), None)
        return self.train and away == piece.devices[-1]

    def arrive(self, piece: Piece, g: int, source: str) -> Recv:
        """Receives an activation, sent by `leave` or by another device. A piece may leave the source
        twice."""
        rides = self.is_leaving(piece, g) and self.labels_ride(piece)
        also = Tensor("target", 0, piece.micro) if rides else None
        return Recv(Tensor("act", self.layout.segments[g][0], piece.micro), source, also=also)

    def answer(self, piece: Piece) -> Iterator[Instruction]:
        at, end = self.layout.segments[-1][1] + 1, piece.devices[-1]
        if end != piece.source:
            yield Recv(Tensor("act", at, piece.micro), end)
        yield Emit(at=at, micro=piece.micro)

    # --- backward and update --------------------------------------------------------------------

    def backward(self, device: str, piece: Piece, g: int) -> Iterator[Instruction]:
        yield from self.return_(device, piece, g)
        yield from self.send_back(device, piece, g)

    def return_(self, device: str, piece: Piece, g: int) -> Iterator[Instruction]:
        """The gradient comes, and the backward pass itself."""
        first, last = self.layout.segments[g]
        if g < self.final and piece.devices[g + 1] != device:
            yield Recv(Tensor("grad", last + 1, piece.micro), piece.devices[g + 1])
        yield Backward(layers=(first, last), micro=piece.micro, samples=piece.samples)

    def send_back(self, device: str, piece: Piece, g: int) -> Iterator[Instruction]:
        """The gradient goes to the device before."""
        first = self.layout.segments[g][0]
        if g and piece.devices[g - 1] != device:  # the samples need no gradient
            before = piece.devices[g - 1]
            yield send_gradient(self.plan, first, piece.micro, piece.samples, before)

    def give(self, device: str, g: int) -> Iterator[Instruction]:
        """Sends a device's gradient of a shared segment to the device that adds them up."""
        if device != self.layout.root(g):
            yield self.send_weights("wgrad", g, self.rank[device], self.layout.root(g))

    def update(self, device: str, g: int) -> Iterator[Instruction]:
        """All copies of a segment get the same gradient and make the same update."""
        root, layers = self.layout.root(g), self.layout.segments[g]
        others = [d for d in self.layout.holders(g) if d != root]
        if device != root:
            total = self.weights("wsum", g, self.rank[device])
            yield Recv(total, root)
            yield Reduce(layers=layers, parts=(total,), replace=True)
        elif others:
            parts = tuple(self.weights("wgrad", g, self.rank[d]) for d in others)
            for part, other in zip(parts, others, strict=True):
                yield Recv(part, other)
            yield Reduce(layers=layers, parts=parts, codec=self.plan.gradient_codec)
            for other in others:
                yield self.send_weights("wsum", g, self.rank[other], other)
        yield Update(layers=layers)

    def weights(self, kind: str, g: int, rank: int) -> Tensor:
        key = kind, g, rank
        if key not in self._weights:
            first, last = self.layout.segments[g]
            name: Kind = "wgrad" if kind == "wgrad" else "wsum"
            self._weights[key] = Tensor(name, first, rank, last)
        return self._weights[key]

    def send_weights(self, kind: str, g: int, rank: int, dest: str) -> Send:
        codec = self.plan.gradient_codec
        if g not in self._gradients:
            first, last = self.layout.segments[g]
            layers = self.plan.profile.layers[first : last + 1]
            raw = sum([layer.param_bytes for layer in layers])
            self._gradients[g] = coded_bytes(raw, codec)
        return Send(self.weights(kind, g, rank), dest, self._gradients[g], codec)
