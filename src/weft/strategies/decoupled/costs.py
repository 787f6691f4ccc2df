"""What a peer computes when it holds some of the classes: arithmetic without weights.

    costs = class_costs(convolutions(graph), last=6, classes=10)
    costs.dense_macs() / costs.peer_macs([52] * 6, held=2)        # less work per sample
    costs.load(2, [52] * 6)                                       # and per epoch: it has fewer samples, too

A multiply-add counts one (MAC). Training a sample takes three forward passes' worth.
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
    """Shapes of one convolution; `kernel` and `area` count positions."""

    inputs: int
    outputs: int
    kernel: int
    area: int  # of its output map

    def macs(self, inputs: int | None = None, outputs: int | None = None) -> int:
        return self.area * (outputs or self.outputs) * (inputs or self.inputs) * self.kernel

    def weights(self, inputs: int | None = None, outputs: int | None = None) -> int:
        return (outputs or self.outputs) * (inputs or self.inputs) * self.kernel


def convolutions(graph: Graph) -> tuple[Convolution, ...]:
    """The ungrouped convolutions of a captured network, in order."""
    found = []
    for node in (node for layer in graph.layers for node in layer.nodes):
        weight = node.args[1] if operator_named(node.op).units == "channels" else None
        if isinstance(weight, Ref) and weight.name in graph.state:
            outputs, inputs, *kernel = graph.state[weight.name].shape
            area = prod(graph.values[node.name].shape[2:])
            found.append(Convolution(inputs, outputs, prod(kernel), area))
    return tuple(found)


@dataclass(frozen=True)
class ClassCosts:
    """A network of convolutions, decoupled after the shared ones."""

    shared: tuple[Convolution, ...]
    decoupled: tuple[Convolution, ...]
    classes: int
    hidden: tuple[int, ...] = ()  # sizes of dense layers before the last; structures have none

    def shared_macs(self) -> int:
        return sum(conv.macs() for conv in self.shared)

    def dense_macs(self) -> int:
        """One forward pass of the network as it was before."""
        sizes = (self.decoupled[-1].outputs, *self.hidden, self.classes)
        head = sum(a * b for a, b in itertools.pairwise(sizes))
        return self.shared_macs() + sum(conv.macs() for conv in self.decoupled) + head

    def structure_macs(self, filters: Sequence[int]) -> int:
        """One class: `filters` in each decoupled layer, and its logit."""
        inputs = (self.decoupled[0].inputs, *filters)
        pairs = zip(self.decoupled, inputs, filters, strict=False)
        return sum(conv.macs(i, o) for conv, i, o in pairs) + filters[-1]

    def peer_macs(self, filters: Sequence[int], held: int) -> int:
        """One forward pass of a sub-model for `held` classes of equal size."""
        return self.shared_macs() + held * self.structure_macs(filters)

    def shared_weights(self) -> int:
        return sum(conv.weights() for conv in self.shared)

    def structure_weights(self, filters: Sequence[int]) -> int:
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
        """Additions and scalings of one round: the ring's share of the shared layers, and each
        structure with two neighbours who hold it between them once (the class set is there twice)."""
        ring = 2.0 * self.shared_weights() * (peers - 1) / peers
        return ring + 2.0 * held * self.structure_weights(filters)


def class_costs(
    found: Sequence[Convolution], last: int, classes: int, hidden: Sequence[int] = ()
) -> ClassCosts:
    """The costs of a network whose last `last` convolutions are decoupled."""
    if not 1 <= last < len(found):
        raise InputError(
            f"last = {last} convolutions to decouple of {len(found)}; "
            f"1 to {len(found) - 1} are allowed"
        )
    return ClassCosts(tuple(found[:-last]), tuple(found[-last:]), classes, tuple(hidden))
