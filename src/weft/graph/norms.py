"""Batch norms whose statistics are those of the whole minibatch, however its samples are cut up.

    graph = by_norms(graph)              # a layer begins at every batch norm
    synced_norms(graph)                  # where they are, and how many bytes their sums have
    synced_segment(graph, 4, 5)          # its norms read sums that others have added to

A batch norm needs, of each channel, the sum of its values, the sum of their squares, and their number: S.
Each piece of a minibatch has its own S; the sum over all pieces is that of the minibatch. In training the
norm is then a function of its input x and of S, and the way back is that of any sum: the gradients of S are
added up over all pieces, and each piece's x gets dS[sum] + 2 x dS[squares] beside its own gradient. This is
what one process computes. Sums are kept in float64: a variance is a small difference of large numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from weft.errors import InputError
from weft.graph.layers import group_layers
from weft.graph.network import Graph, Layer, Node, Ref, Segment, SyncedNorm, Value, refs
from weft.graph.operators.calls import COUNTER, SYNCED_NORM
from weft.graph.operators.table import operator_named

NUMBER = 8  # bytes of a number of the sums


def by_norms(graph: Graph) -> Graph:
    """The same network in finer layers: one begins at every batch norm, one at every weighted operator."""
    nodes = [node for layer in graph.layers for node in layer.nodes]
    depth = _depths(graph, nodes)
    modules = {
        node.name: weights[0].rpartition(".")[0]
        for node in nodes
        if (weights := [name for name in refs(node) if name in graph.state])
    }
    layers = group_layers(
        nodes, depth, graph.inputs, graph.outputs, dict(graph.values), graph.state, modules
    )
    named = [_named(layer, modules) for layer in layers]
    finer = replace(graph, layers=named)
    for place, layer in enumerate(finer.layers):
        for node in _norms(layer):
            if _read(node, 0) not in finer.cut(place):
                raise InputError(
                    f"sync_bn=yes: the batch norm in layer {layer.name} of {graph.name} cannot be parted "
                    "from what makes its input; leave sync_bn out"
                )
    return finer


def synced_norms(graph: Graph) -> tuple[tuple[int, int], ...]:
    """(layer, bytes of its sums) of every layer that begins with batch norms."""
    norms_of_layers = []
    for place, layer in enumerate(graph.layers):
        numbers = [2 * graph.values[_read(node, 0)].shape[1] + 1 for node in _norms(layer)]
        if numbers:
            norms_of_layers.append((place, NUMBER * sum(numbers)))
    return tuple(norms_of_layers)


def synced_segment(graph: Graph, first: int, last: int, with_loss: bool = False) -> Segment:
    """As `graph.segment`; the batch norms of its first layer read the sums of the whole minibatch."""
    segment = graph.segment(first, last, with_loss=with_loss)
    changed: dict[str, Node | None] = {}
    norms: list[SyncedNorm] = []
    for node in _norms(graph.layers[first]):
        norm = _synced(graph, node, segment.nodes)
        norms.append(norm)
        eps = node.args[7]
        args = [node.args[0], node.args[1], node.args[2], Ref(norm.sums), eps]
        changed[node.name] = Node(node.name, SYNCED_NORM, args)
    counted = {norm.counter for norm in norms}
    for node in segment.nodes:
        if node.op == COUNTER and _read(node, 0) in counted:
            changed[node.name] = None  # counted once in a minibatch, not once in a piece
    nodes = [new for node in segment.nodes if (new := changed.get(node.name, node)) is not None]
    sums = {
        norm.sums: Value((2 * norm.channels + 1,), "float64", batch_dim=None, scales=False)
        for norm in norms
    }
    return replace(segment, nodes=nodes, inputs={**segment.inputs, **sums}, norms=tuple(norms))


def _synced(graph: Graph, node: Node, nodes: list[Node]) -> SyncedNorm:
    momentum = node.args[6]
    mean, variance = (_read(node, place) for place in (3, 4))
    prefix = mean.rpartition(".")[0] if mean else ""
    counters = [_read(n, 0) for n in nodes if n.op == COUNTER]
    return SyncedNorm(
        value=_read(node, 0),
        sums=f"{node.name}@sums",
        channels=graph.values[_read(node, 0)].shape[1],
        mean=mean,
        variance=variance,
        counter=next((c for c in counters if c.rpartition(".")[0] == prefix), ""),
        momentum=float(momentum) if isinstance(momentum, int | float) else 0.0,
    )


def _norms(layer: Layer) -> list[Node]:
    """The batch norms of a layer that training normalises by the samples at hand."""
    return [node for node in layer.nodes if normalises(node)]


def normalises(node: Node) -> bool:
    """Whether it normalises with the samples at hand in training. A frozen batch norm does not."""
    record = operator_named(node.op)
    return record.normalises_batch and node.args[record.training_flag or 0] is True


def _read(node: Node, place: int) -> str:
    """The name that an argument refers to; empty where it is none."""
    arg = node.args[place]
    return arg.name if isinstance(arg, Ref) else ""


def _depths(graph: Graph, nodes: list[Node]) -> dict[str, int]:
    """How many weighted operators and batch norms lie on the longest path to each node."""
    depth: dict[str, int] = dict.fromkeys(graph.inputs, 0)
    later: list[
        Node
    ] = []  # constants and counters go where they are read, or where their module is
    for node in nodes:
        known = [depth[name] for name in refs(node) if name in depth]
        if not known:
            later.append(node)
            continue
        weighted = operator_named(node.op).weighted and any(r in graph.state for r in refs(node))
        depth[node.name] = max(known) + (weighted or normalises(node))
    for node in reversed(later):
        readers = [depth[n.name] for n in nodes if n.name in depth and node.name in refs(n)]
        depth[node.name] = min(readers) if readers else _beside(node, nodes, depth)
    # What reads a constant alone was put off as well, and is placed now.
    return depth


def _beside(counter: Node, nodes: list[Node], depth: Mapping[str, int]) -> int:
    """The depth of the operator that reads the same module's state."""
    prefix = _read(counter, 0).rpartition(".")[0]
    near = [
        depth[n.name]
        for n in nodes
        if n.name in depth and any(r.rpartition(".")[0] == prefix for r in refs(n) if "." in r)
    ]
    return min(near, default=1)


def _named(layer: Layer, modules: Mapping[str, str]) -> Layer:
    """A layer that begins with a batch norm has its name."""
    norms = _norms(layer)
    return replace(layer, name=modules.get(norms[0].name, layer.name)) if norms else layer
