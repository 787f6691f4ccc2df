"""The schedule as data: one short list of instructions per device for one minibatch.

The list is the body of a software-pipelined loop: at tick n an instruction works on minibatch
n - lag, and is skipped if there is no such minibatch. If all lags are 0, a tick is a step.

    phone   forward; send a; recv g [lag 1]; backward [lag 1]; update [lag 1]      two in flight

An instruction with `every` k is executed only at each k-th minibatch: the exchange at the end of a round.

A message is named by its kind, the cut that it crosses, and the micro-batch. On the wire the plan's version
and the minibatch are added, so that a stale, repeated or foreign message is recognised.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from weft.codecs.registry import CodecName
from weft.graph.network import Blank

Kind = Literal[
    "act", "grad", "target", "done", "wgrad", "wsum", "follow", "in", "up", "down", "back", "share",
    "whole", "group", "row", "sum", "norm", "dnorm", "gnorm",
]  # fmt: skip

# What a receiver does if a message has not arrived in time. wait: waits until the run's deadline. zero: uses
# zeros. own: uses its own values of that layer, cyclically. skip: skips the minibatch. newest: uses the
# newest message that has arrived, of any minibatch; without a new one it goes on with none.
Late = Literal["wait", "zero", "own", "skip", "newest"]


class Tensor(Struct, frozen=True, array_like=True):
    """All values of one kind that cross one cut for one micro-batch."""

    # act: forward over cut `at` (0: the samples); grad: back over it; target: the labels;
    # done: an empty message: the first layers have been updated;
    # wgrad: a device's gradient of the weights of layers at..last; wsum: its sum over all devices;
    # follow: the gradient and the buffers of layers at..last, for a device that stands by
    # in, up, down: strips of the values of a round that begins at layer `at`: what a turn reads,
    # what a device hands to the gateway, what the gateway hands to a turn
    # back: the gradient of `in`; share: what one device adds to the gradient of another's values at
    # cut `at`; whole: only says whether a device has lost no message of the minibatch
    # group: the weights of group `at` at device `micro`; row, sum: piece `at` of them as one row of
    # numbers, of device `micro` alone, or added up as far as device `micro`
    # norm: sums over samples at the batch norms of layer `at`, of device `micro` (part 1: of all devices);
    # dnorm: the gradients of these sums
    # gnorm: the sum of the squares of gradients, of device `micro` (part 1: of all devices)
    kind: Kind
    at: int
    micro: int = 0  # for weights: the number of the device in the plan
    last: int = -1
    part: int = 0  # the number of a turn in its round, or of a device; 0: the whole

    def __str__(self) -> str:
        part = f"/{self.part}" if self.part else ""
        return f"{self.kind}{self.at}.{self.micro}{part}"


class Load(Struct, frozen=True, tag="load", omit_defaults=True):
    """Feed samples first..last-1 of the minibatch, as act 0 and target."""

    micro: int
    samples: tuple[int, int]
    lag: int = 0


class Recv(Struct, frozen=True, tag="recv", omit_defaults=True):
    """Waits for a tensor of another device."""

    tensor: Tensor
    source: str
    also: Tensor | None = None  # sent in the same message
    lag: int = 0
    late: Late = "wait"
    slot: int = 0  # for a message that may be late: its time slot in the minibatch
    blanks: tuple[Blank, ...] = ()  # the values that replace it
    samples: int = 0
    own: Tensor | None = None  # late = own: the tensor that is used in its place
    every: int = 1


class Miss(Struct, frozen=True, tag="miss", omit_defaults=True):
    """A message that the plan leaves out. The reader uses the same substitute as after a loss."""

    tensor: Tensor
    late: Late
    blanks: tuple[Blank, ...]
    samples: int
    own: Tensor | None = None
    lag: int = 0

    @property
    def micro(self) -> int:
        return self.tensor.micro


class Radio(Struct, frozen=True, array_like=True):
    """How a best-effort message is sent: how often directly, and how often through a relay."""

    slot: int  # the time slot, which decides which of the minibatch's losses are drawn
    direct: int = 1
    relayed: int = 0
    via: str = ""


class Send(Struct, frozen=True, tag="send", omit_defaults=True):
    """Sends a tensor. The device goes on computing while the message waits for its links and crosses them."""

    tensor: Tensor
    dest: str
    bytes: int  # on the wire, as planned
    codec: CodecName = "none"
    also: Tensor | None = None  # sent in the same message: labels with their activation
    lag: int = 0
    radio: Radio | None = None  # best effort: it may get lost and is not sent again
    late: Late = "wait"  # newest: not sent while the message before it is still waiting
    every: int = 1


class Forward(Struct, frozen=True, tag="forward", omit_defaults=True):
    """Layers first..last on one micro-batch: act `first` in, act `last + 1` out.

    A turn of a round reads `in` and computes only a part: `work` is its share of each layer.
    """

    layers: tuple[int, int]
    micro: int
    samples: int
    lag: int = 0
    part: int = 0
    work: tuple[float, ...] = ()


class Loss(Struct, frozen=True, tag="loss", omit_defaults=True):
    """The loss of one micro-batch. Makes grad N, weighted by the micro-batch's share of the minibatch."""

    micro: int
    samples: int
    lag: int = 0
    part: int = 0


class Backward(Struct, frozen=True, tag="backward", omit_defaults=True):
    """grad `last + 1` in, grad `first` out; weight gradients add up until the update.

    A turn reads its part of grad `last + 1` and makes `back`, the gradient of all that it read.
    """

    layers: tuple[int, int]
    micro: int
    samples: int
    lag: int = 0
    part: int = 0
    work: tuple[float, ...] = ()


class Reduce(Struct, frozen=True, tag="reduce", omit_defaults=True):
    """Adds other devices' gradients of the same weights to this device's gradient, or takes over the sum.

    If the sum is sent coded, the adding device also uses the rounded sum, so that all copies stay equal.
    """

    layers: tuple[int, int]
    parts: tuple[Tensor, ...]
    replace: bool = False
    codec: CodecName = "none"  # of the sum that is sent
    lag: int = 0


class Update(Struct, frozen=True, tag="update", omit_defaults=True):
    """The optimizer's step for a range of layers."""

    layers: tuple[int, int]
    lag: int = 0
    part: int = 0
    work: tuple[float, ...] = ()


class Extract(Struct, frozen=True, array_like=True):
    """Places first..last-1 of one value of a tensor that the device holds, counted from the tensor's first
    place."""

    tensor: Tensor
    value: str
    dim: int
    first: int
    last: int


class Spare(Struct, frozen=True, array_like=True):
    """A replacement: if `missing` did not arrive and `tensor` did, these places of `tensor` go into the
    result."""

    missing: Tensor
    tensor: Tensor
    value: str
    dim: int
    places: tuple[int, ...]
    into: tuple[int, ...]


class Stitch(Struct, frozen=True, tag="stitch", omit_defaults=True):
    """Makes one tensor from pieces of others. The pieces of each value are joined one after the other, or
    added.

    `shares` says how much of the value each piece carries. If given, the result is multiplied by `expected`
    over the shares of the pieces that arrived, so that sums keep their size when pieces get lost.
    """

    into: Tensor
    pieces: tuple[Extract, ...]
    add: bool = False
    shares: tuple[float, ...] = ()
    expected: float = 0.0
    spares: tuple[Spare, ...] = ()
    lag: int = 0
    every: int = 1

    @property
    def micro(self) -> int:
        return self.into.micro

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (*(piece.tensor for piece in self.pieces), *(spare.tensor for spare in self.spares))


class Pool(Struct, frozen=True, tag="pool", omit_defaults=True):
    """Sums over samples at the batch norms of a layer, so that all pieces share their statistics.

    Without `parts`: the sums of this device's own pieces. With them: the sum of the parts, which the norms
    use from now on. Forward (norm) they normalise by it; backward (dnorm) it corrects their gradients.
    """

    into: Tensor
    micros: tuple[int, ...]  # the device's own pieces
    parts: tuple[Tensor, ...] = ()
    lag: int = 0

    @property
    def micro(self) -> int:
        return 0

    @property
    def reads(self) -> tuple[Tensor, ...]:
        if self.into.kind == "norm" and self.parts:
            return self.parts
        kind: Kind = "act" if self.into.kind == "norm" else "grad"
        own = tuple(Tensor(kind, self.into.at, micro) for micro in self.micros)
        return (*self.parts, *own)


class Squares(Struct, frozen=True, tag="squares", omit_defaults=True):
    """The sum of the squares of the gradients of some segments."""

    into: Tensor
    segments: tuple[tuple[int, int], ...]
    lag: int = 0

    @property
    def micro(self) -> int:
        return 0


class Clip(Struct, frozen=True, tag="clip", omit_defaults=True):
    """Adds up sums of squares and limits the gradients of some segments by the norm that they give."""

    into: Tensor  # the sum
    segments: tuple[tuple[int, int], ...]
    parts: tuple[Tensor, ...]
    lag: int = 0

    @property
    def micro(self) -> int:
        return 0


class Share(Struct, frozen=True, tag="share", omit_defaults=True):
    """Makes a tensor of the current weights of a group; as one row of numbers if `row` is set."""

    into: Tensor
    group: int
    row: bool = False
    scale: float = 1.0  # of a row
    codec: CodecName = "none"  # of its sends; the rounding error is added to the next share
    lag: int = 0
    every: int = 1

    @property
    def micro(self) -> int:
        return self.into.micro


class Blend(Struct, frozen=True, tag="blend", omit_defaults=True):
    """Overwrites the weights of a group with a weighted mean of them and of the weights that arrived.

    The weight of a message that did not arrive is left out. If `total` is given, it is added to the weight of
    this device instead.
    """

    group: int
    own: float
    parts: tuple[Tensor, ...]
    weights: tuple[float, ...]
    total: float = 0.0  # 0: the sum of the weights
    lag: int = 0
    every: int = 1

    @property
    def micro(self) -> int:
        return 0


class Keep(Struct, frozen=True, tag="keep", omit_defaults=True):
    """Keeps the newest weights of a group that only one other device has, in case that device is lost."""

    part: Tensor
    group: int
    lag: int = 0
    every: int = 1

    @property
    def micro(self) -> int:
        return self.part.micro


class Emit(Struct, frozen=True, tag="emit", omit_defaults=True):
    """Hands act `at` of a micro-batch to the user: the answer of an inference."""

    at: int
    micro: int
    lag: int = 0


Instruction = (
    Load | Recv | Miss | Send | Forward | Loss | Backward | Reduce | Update | Stitch
    | Emit | Share | Blend | Keep | Pool | Squares | Clip
)  # fmt: skip


def every(i: Instruction) -> int:
    """The number k if an instruction is executed at each k-th minibatch."""
    return getattr(i, "every", 1)


def due(i: Instruction, step: int) -> bool:
    """Whether an instruction is executed at a minibatch: (step + 1) divides by its `every`."""
    return (step + 1) % every(i) == 0


def stashed(code: Iterable[Instruction]) -> dict[tuple[int, int], int]:
    """By how many minibatches the forward pass of a segment is ahead of its update. Segments without such
    minibatches in flight are left out."""
    forward: dict[tuple[int, int], int] = {}
    update: dict[tuple[int, int], int] = {}
    for i in code:
        if isinstance(i, Forward | Update):
            lags = forward if isinstance(i, Forward) else update
            lags[i.layers] = max(lags.get(i.layers, 0), i.lag)
    ahead = {layers: update.get(layers, 0) - lag for layers, lag in forward.items()}
    return {layers: count for layers, count in ahead.items() if count > 0}


DONE = Tensor("done", 0)
