"""The network as plain data: an ordered list of layers between which it may be cut.

    graph = capture(model, torch.zeros(2, 1, 28, 28))
    graph.cut(2)            # names of the tensors that cross a cut after the second layer
    text = encode(graph)    # JSON; `decode(text)` on another machine gives the same graph

A layer is everything at the same *weighted depth*: pooling, activations and normalisation belong to
the weighted operator before them, and parallel branches of equal depth to one layer. A cut carries every
tensor that is made before it and read after it, so skip connections need no special case.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import msgspec
from msgspec import Struct

from weft.dtypes import DTYPE_BYTES

Mode = Literal["train", "infer"]  # what a network is run for


class Ref(Struct, frozen=True, tag="ref"):
    """An argument that is another node's result, a parameter or an input, by name."""

    name: str


class Batch(Struct, frozen=True, tag="batch"):
    """An integer argument that depends on the batch size B: times * B + plus."""

    times: int
    plus: int = 0


class DType(Struct, frozen=True, tag="dtype"):
    """An argument that is a type of numbers, by its name in `weft.dtypes`."""

    name: str


class Infinite(Struct, frozen=True, tag="infinite"):
    """A float that JSON cannot write: +inf, -inf or nan."""

    name: str


Atom = bool | int | float | str | Ref | Batch | DType | Infinite | None
Arg = Atom | list[Atom]


class Value(Struct, frozen=True):
    """A tensor's shape for one sample (batch size 1), and which dimension counts the samples."""

    shape: tuple[int, ...]
    dtype: str
    batch_dim: int | None = 0  # the dimension that counts samples; None: not exactly one does
    scales: bool = True  # whether its size grows with the batch at all

    @property
    def bytes(self) -> int:
        """Bytes per sample; all bytes if the size does not grow with the batch."""
        size = DTYPE_BYTES[self.dtype]
        for n in self.shape:
            size *= n
        return size

    @property
    def differentiable(self) -> bool:
        """Whether a gradient can flow back through it."""
        return self.dtype.startswith(("float", "bfloat"))


class Node(Struct, frozen=True):
    """One operator call: `name = op(*args, **kwargs)`; op is a name of the table in `operators`."""

    name: str
    op: str
    args: list[Arg]
    kwargs: dict[str, Arg] = {}


class State(Struct, frozen=True):
    """A parameter (trainable) or buffer of the network."""

    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True

    @property
    def bytes(self) -> int:
        """Bytes of the whole tensor."""
        size = DTYPE_BYTES[self.dtype]
        for n in self.shape:
            size *= n
        return size


class Layer(Struct, frozen=True):
    """The nodes between two neighbouring cuts."""

    name: str
    nodes: list[Node]
    state: list[str]  # parameters and buffers, by their name in the module
    forward_flops: float  # per sample
    saved_bytes: int  # activations kept for the backward pass, per sample
    block: str = ""  # the repeated part of the module that it belongs to (graph/blocks.py)


class CutLoss(Struct, frozen=True):
    """A loss of pieces of a minibatch (graph/loss/totals.py). The losses of the pieces add up."""

    nodes: list[Node]  # read a piece's outputs and targets, and the totals; make the loss's output
    totals: tuple[str, ...]  # names of sums over the targets of the whole minibatch
    sums: list[Node]  # make the totals from all targets
    bytes: int = 0  # of all totals


class Loss(Struct, frozen=True):
    """The loss, captured like a layer: reads outputs of the network, and the targets."""

    nodes: list[Node]
    inputs: tuple[str, ...]  # names of the outputs that it reads, then of the targets
    output: str
    target: Value  # the first target
    reduction: Literal["mean", "sum"]
    state: list[str] = []  # tensors such as class weights, kept with the network's state
    # totals: it follows from its pieces and from sums over all targets (`cut`)
    # batch: the loss of a whole minibatch does not follow from the losses of its pieces (`why`)
    over: Literal["samples", "totals", "batch"] = "samples"
    name: str = ""
    further_targets: tuple[Value, ...] = ()
    cut: CutLoss | None = None
    why: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the network's outputs that it reads."""
        return self.inputs[: -1 - len(self.further_targets)]

    @property
    def targets(self) -> dict[str, Value]:
        """The targets by name."""
        names = self.inputs[len(self.reads) :]
        return dict(zip(names, (self.target, *self.further_targets), strict=True))

    @property
    def target_bytes(self) -> int:
        """Bytes of one sample's targets."""
        return sum(value.bytes for value in self.targets.values())

    @property
    def total_bytes(self) -> int:
        """Bytes of the sums over all targets, which travel with each piece's targets."""
        return self.cut.bytes if self.cut is not None else 0


class Blank(Struct, frozen=True, array_like=True):
    """A value that is missing: its name, its shape for one sample (samples first), and its type."""

    value: str
    shape: tuple[int, ...]
    dtype: str = "float32"


class Graph(Struct, frozen=True, dict=True):
    """A captured network as data that can be written as JSON. The weights are separate (a state dict)."""

    name: str
    inputs: list[str]
    output: str
    layers: list[Layer]
    values: dict[str, Value]
    state: dict[str, State]
    loss: Loss | None = None
    further_outputs: tuple[str, ...] = ()  # where the network returns several tensors
    mixes: str = ""  # where samples of a minibatch meet (mixing.py); "": each is computed alone

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of all tensors that the network returns, or that its loss reads."""
        return (self.output, *self.further_outputs)

    @cached_property
    def cuts(self) -> list[tuple[str, ...]]:
        """`cuts[m]`: names of the values that cross a cut after the first m layers."""
        made_in: dict[str, int] = dict.fromkeys(self.inputs, 0)
        last: dict[str, int] = {}
        for depth, layer in enumerate(self.layers, start=1):
            for node in layer.nodes:
                made_in[node.name] = depth
                for name in refs(node):
                    last[name] = depth
        last |= dict.fromkeys(self.outputs, len(self.layers) + 1)
        crossing: list[list[str]] = [[] for _ in range(len(self.layers) + 1)]
        for name, birth in made_in.items():
            for m in range(birth, min(last.get(name, 0), len(self.layers) + 1)):
                crossing[m].append(name)
        return [tuple(names) for names in crossing]

    def cut(self, m: int) -> tuple[str, ...]:
        """Names of the values that cross a cut after the first m layers."""
        return self.cuts[m]

    def cut_bytes(self, m: int) -> int:
        """Bytes per sample over a cut after the first m layers (0: the input, N: the output)."""
        return sum(self.values[name].bytes for name in self.cuts[m])

    def layer_state(self, first: int, last: int) -> list[str]:
        """State names of layers first..last (0-based, both included)."""
        return [name for layer in self.layers[first : last + 1] for name in layer.state]

    def param_bytes(self, layer: int) -> int:
        """Bytes of a layer's trainable weights."""
        return sum(self.state[n].bytes for n in self.layers[layer].state if self.state[n].trainable)

    @property
    def parameters(self) -> int:
        """How many trainable numbers the network has."""
        return sum(s.bytes // DTYPE_BYTES[s.dtype] for s in self.state.values() if s.trainable)

    @property
    def forward_flops(self) -> float:
        """Floating-point operations of a forward pass, per sample."""
        return sum(layer.forward_flops for layer in self.layers)

    def segment(self, first: int, last: int, with_loss: bool = False) -> Segment:
        """Layers first..last (0-based, both included) as a unit that can be sent and run."""
        inputs, outputs = self.cuts[first], self.cuts[last + 1]
        state = self.layer_state(first, last)
        if with_loss and self.loss:
            state = [*state, *self.loss.state]
        return Segment(
            first=first,
            last=last,
            nodes=[node for layer in self.layers[first : last + 1] for node in layer.nodes],
            inputs={name: self.values[name] for name in inputs},
            outputs={name: self.values[name] for name in outputs},
            state={name: self.state[name] for name in state},
            loss=self.loss if with_loss else None,
        )


class Pick(Struct, frozen=True):
    """A part of a parameter: the parameter viewed in `shape`, then places first..last-1 of one dimension.

    If `rows` or `columns` are given, the part is these places of the first and second dimension, in this
    order. An empty list means all places.
    """

    shape: tuple[int, ...]
    dim: int
    first: int
    last: int
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()

    @property
    def listed(self) -> bool:
        """Whether places are listed one by one instead of as a range."""
        return bool(self.rows or self.columns)


class SyncedNorm(Struct, frozen=True):
    """A batch norm that reads the sums of a whole minibatch (graph/norms.py), by the names of its values."""

    value: str  # what it normalises
    sums: str  # of its values, their squares, and their number
    channels: int
    mean: str = ""  # buffers; empty: it has none
    variance: str = ""
    counter: str = ""
    momentum: float = 0.1


class Segment(Struct, frozen=True, omit_defaults=True):
    """Some consecutive layers, the values that enter and the values that leave: all that a device gets of a
    network."""

    first: int
    last: int
    nodes: list[Node]
    inputs: dict[str, Value]
    outputs: dict[str, Value]
    state: dict[str, State]
    loss: Loss | None = None
    part: int = 0  # 0: all of the layers; else the number of a turn in a round
    norms: tuple[SyncedNorm, ...] = ()  # of its first layer, where they are normalised together
    picks: dict[str, Pick] = {}  # state of which only a part is here; its shape is the part's


def refs(node: Node) -> list[str]:
    """Names that a node reads."""
    names: list[str] = []
    for arg in [*node.args, *node.kwargs.values()]:
        for atom in arg if isinstance(arg, list) else [arg]:
            if isinstance(atom, Ref):
                names.append(atom.name)
    return names


def encode(graph: Graph) -> bytes:
    """The graph as JSON."""
    return msgspec.json.encode(graph)


def decode(data: bytes) -> Graph:
    """The graph that `encode` wrote."""
    return msgspec.json.decode(data, type=Graph)
