"""What a peer computes when it holds some of the classes: numbers from shapes, without weights.

    costs = class_costs(convolutions(graph), last=6, classes=10)
    costs.per_sample([52] * 6, held=2)    # how many times less a peer computes for a sample
    costs.per_epoch([52] * 6, held=2)     # and in an epoch: a peer has fewer samples too

One multiply-add is one MAC. Training on a sample costs as much as three forward passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from weft.errors import InputError
from weft.graph.network import Graph, Ref
from weft.graph.operators.table import operator_named

TRAINING = 3  # forward, gradients of activations, gradients of weights


@dataclass(frozen=True)
class Convolution:
    """The shape of one convolution: channels, positions of its kernel, positions of its output map."""

    inputs: int
    outputs: int
    kernel: int
    area: int

    def macs(self, inputs: int | None = None, outputs: int | None = None) -> int:
        """MACs for one sample, with all channels or with so many."""
        return self.area * (outputs or self.outputs) * (inputs or self.inputs) * self.kernel

    def weights(self, inputs: int | None = None, outputs: int | None = None) -> int:
        """The number of weights, with all channels or with so many."""
        return (outputs or self.outputs) * (inputs or self.inputs) * self.kernel


def convolutions(graph: Graph) -> tuple[Convolution, ...]:
    """The convolutions of a captured network that are not grouped, in order."""
    shapes = []
    for node in (node for layer in graph.layers for node in layer.nodes):
        weight = node.args[1] if operator_named(node.op).units == "channels" else None
        if isinstance(weight, Ref) and weight.name in graph.state:
            outputs, inputs, *kernel = graph.state[weight.name].shape
            area = prod(graph.values[node.name].shape[2:])
            shapes.append(Convolution(inputs, outputs, prod(kernel), area))
    return tuple(shapes)


@dataclass(frozen=True)
class ClassCosts:
    """A network of convolutions: all peers share the first ones, the last ones are decoupled."""

    shared: tuple[Convolution, ...]
    decoupled: tuple[Convolution, ...]
    classes: int
    hidden: tuple[int, ...] = ()  # sizes of the dense layers before the last; structures have none

    def shared_macs(self) -> int:
        """MACs of the shared layers for one sample."""
        return sum(conv.macs() for conv in self.shared)

    def dense_macs(self) -> int:
        """MACs of one forward pass of the network before it was decoupled."""
        sizes = (self.decoupled[-1].outputs, *self.hidden, self.classes)
        head = sum(a * b for a, b in itertools.pairwise(sizes))
        return self.shared_macs() + sum(conv.macs() for conv in self.decoupled) + head

    def structure_macs(self, filters: Sequence[int]) -> int:
        """MACs of one class: `filters` in each decoupled layer, and its logit."""
        inputs = (self.decoupled[0].inputs, *filters)
        pairs = zip(self.decoupled, inputs, filters, strict=False)
        return sum(conv.macs(i, o) for conv, i, o in pairs) + filters[-1]

    def peer_macs(self, filters: Sequence[int], held: int) -> int:
        """MACs of one forward pass of a peer's network with `held` classes of equal size."""
        return self.shared_macs() + held * self.structure_macs(filters)

    def shared_weights(self) -> int:
        """The number of weights in the shared layers."""
        return sum(conv.weights() for conv in self.shared)

    def structure_weights(self, filters: Sequence[int]) -> int:
        """The number of weights of one class."""
        inputs = (self.decoupled[0].inputs, *filters)
        pairs = zip(self.decoupled, inputs, filters, strict=False)
        return sum(conv.weights(i, o) for conv, i, o in pairs) + filters[-1] + 1

    def per_sample(self, filters: Sequence[int], held: int) -> float:
        """How many times less a peer computes for one sample."""
        return self.dense_macs() / self.peer_macs(filters, held)

    def per_epoch(self, filters: Sequence[int], held: int) -> float:
        """The same for one epoch: a peer has only the samples of its classes."""
        return self.per_sample(filters, held) * self.classes / held

    def aggregation(self, filters: Sequence[int], held: int, peers: int) -> float:
        """Additions and scalings of one round.

        The shared layers are averaged on a ring. Each class is averaged with two neighbours who hold it
        (each class is held twice).
        """
        ring = 2.0 * self.shared_weights() * (peers - 1) / peers
        return ring + 2.0 * held * self.structure_weights(filters)


def class_costs(
    shapes: Sequence[Convolution], last: int, classes: int, hidden: Sequence[int] = ()
) -> ClassCosts:
    """The costs of a network whose last `last` convolutions are decoupled.

    InputError if `last` leaves no shared convolution.
    """
    if not 1 <= last < len(shapes):
        raise InputError(
            f"last = {last} convolutions to decouple of {len(shapes)}; "
            f"1 to {len(shapes) - 1} are allowed"
        )
    return ClassCosts(tuple(shapes[:-last]), tuple(shapes[-last:]), classes, tuple(hidden))
