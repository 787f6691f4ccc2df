"""Which layers of a network can be spread unit by unit: dense layers, and convolutions by channels.

    before, rest = unit_parts(graph, 2)      # the nodes that turn the input into a vector, and the others

A unit is a neuron of a dense layer or a channel of a convolution. The following nodes of the same layer must
treat each unit by itself, as activations and pools do. If a dense layer follows a convolution, it turns the
map into a vector; a channel then stands for all of its places in that vector.
"""

from __future__ import annotations

from math import prod

from weft.errors import InputError
from weft.graph.network import Graph, Node, Ref, refs
from weft.graph.operators.calls import COUNTER, flattened
from weft.graph.operators.rows import argument, is_map
from weft.graph.operators.sequences import PER_CHANNEL
from weft.graph.operators.table import operator_named
from weft.graph.split.divide import divide, is_constant, is_flatten, reads, weighted

_GROUPS = 6  # place of the number of groups among a convolution's arguments

Parts = tuple[tuple[Node, ...], tuple[Node, ...]]


def unit_parts(graph: Graph, layer: int) -> Parts:
    """A layer's nodes: (those that turn the input into a vector, the others). Raises InputError if the layer
    cannot be spread by units."""
    nodes = [node for node in graph.layers[layer].nodes if not is_constant(graph, node.name)]
    heavy = [node for node in nodes if weighted(graph, node)]
    last = layer == len(graph.layers) - 1
    if len(heavy) == 1 and operator_named(heavy[0].op).units == "channels" and not last:
        before: tuple[Node, ...] = ()
        rest, odd = _convolution(graph, nodes, heavy[0])
    else:
        before, rest, odd = _dense(graph, layer, last)
    crossing = [*graph.cuts[layer], *graph.cuts[layer + 1]]
    if not odd and len(crossing) != 2:
        odd = f"{', '.join(crossing)} cross its ends where one value each is allowed"
    if not odd:
        odd = _odd_skip(graph, layer)
    if not odd and reads(graph, (*before, *rest)) != [crossing[0]]:
        odd = "it reads more than the layer before"
    if odd:
        raise InputError(
            f"layer {layer + 1} ({graph.layers[layer].name}) cannot be spread by units: {odd}. Use a "
            "network of convolutions and fully connected layers in a row, such as mlp or lenet5"
        )
    return before, rest


def skips(graph: Graph, layer: int) -> list[Node]:
    """The nodes that add a layer's own input, unit by unit, to what the layer makes of it."""
    nodes = [node for node in graph.layers[layer].nodes if not is_constant(graph, node.name)]
    heavy = [node for node in nodes if weighted(graph, node)]
    after = {node.name for node in heavy}
    skipped = []
    for node in nodes:
        if node not in heavy and after & set(refs(node)):
            after.add(node.name)
            if graph.cuts[layer][0] in refs(node):
                skipped.append(node)
    return skipped


def _odd_skip(graph: Graph, layer: int) -> str:
    """Why a skip connection cannot be taken unit by unit; empty where it can, or where there is none."""
    source = graph.values[graph.cuts[layer][0]]
    for node in skips(graph, layer):
        direct = [arg for arg in node.args if isinstance(arg, Ref)]
        same = graph.values[node.name].shape == source.shape
        if layer == len(graph.layers) - 1 or not same or len(direct) != len(refs(node)):
            return f"{node.name} adds an input of another shape, or the output layer's"
    return ""


def places_of(graph: Graph, layer: int, width: int) -> int:
    """How many of a weight's `width` inputs belong to one unit of the layer before."""
    return width // graph.values[graph.cuts[layer][0]].shape[1]


def _dense(graph: Graph, layer: int, last: bool) -> tuple[tuple[Node, ...], tuple[Node, ...], str]:
    division = divide(graph, (layer, layer), "model")
    odd = ""
    blocking = [node for node in division.before if not _by_channels(graph, node)]
    if layer and blocking:
        odd = f"{blocking[0].name} needs the whole vector before it"
    elif division.after and not last:
        odd = f"{division.after[0].name} needs the whole vector after it"
    # A flattening with a fixed size would not fit a part of the map's channels.
    before = tuple(
        flattened(node.name, refs(node)[0]) if is_flatten(graph, node) else node
        for node in division.before
    )
    return before, (*division.own, *division.after), odd


def _by_channels(graph: Graph, node: Node) -> bool:
    """Whether every channel of a map is treated by itself, until the map is turned into a vector."""
    return is_flatten(graph, node) or _channelwise(graph, node)


def _convolution(graph: Graph, nodes: list[Node], node: Node) -> tuple[tuple[Node, ...], str]:
    if argument(node, _GROUPS, "groups", 1) != 1:
        return tuple(nodes), f"{node.name} reads its channels in groups"
    if nodes[0] is not node:
        return tuple(nodes), f"{nodes[0].name} comes before {node.name}"
    for other in nodes[1:]:
        if not (_channelwise(graph, other) or _channel_norm(graph, other) or other.op == COUNTER):
            return tuple(nodes), f"{other.name} ({other.op}) has weights or mixes channels"
    return tuple(nodes), ""


def _channel_norm(graph: Graph, node: Node) -> bool:
    """Whether it normalises each channel by itself, with one weight and one statistic for each."""
    operator = operator_named(node.op)
    if operator.rows is not PER_CHANNEL or operator.units != "elementwise":
        return False
    channels = graph.values[node.name].shape[1]
    return all(graph.state[n].shape == (channels,) for n in refs(node) if n in graph.state)


def _channelwise(graph: Graph, node: Node) -> bool:
    """Whether each channel of the result depends only on the same channel of one map, without weights."""
    value = graph.values.get(node.name)
    if value is None or not is_map(value) or any(name in graph.state for name in refs(node)):
        return False
    read = [graph.values[name] for name in refs(node)]
    maps = [operand for operand in read if operand.scales]
    units = operator_named(node.op).units
    if units == "per_channel":
        return len(read) == 1 and read[0].shape[1] == value.shape[1]
    fits = all(operand.shape == value.shape for operand in maps)
    return units == "elementwise" and fits and all(
        prod(operand.shape) == 1 for operand in read if not operand.scales
    )  # fmt: skip
