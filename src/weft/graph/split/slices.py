"""Segments that compute a part of some layers: a strip of rows, some units, a summand of a sum.

Each is an ordinary Segment and is run like any other. Its nodes are rewritten (weft.graph.split.strips), its
inputs, outputs and state have the shape of the part, and `picks` says which part of a parameter it has. The
partial sums of a fully connected layer have their own name (`sum_name`): they are without the bias and the
following nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from weft.graph.network import Graph, Node, Pick, Ref, Segment, State, Value, refs
from weft.graph.operators.calls import added, alias, flattened
from weft.graph.operators.rows import Range
from weft.graph.operators.table import operator_named
from weft.graph.split.divide import Division, is_constant
from weft.graph.split.rows import cut_dim
from weft.graph.split.strips import renamed, strip_nodes


def sum_name(linear: Node) -> str:
    """The name of a fully connected layer's partial sums."""
    return f"{linear.name}:sum"


def bias_node(linear: Node) -> Node:
    """The node that makes a fully connected layer's result from the sum of the devices' parts: it adds the
    bias."""
    total = Ref(sum_name(linear))
    bias = linear.args[2] if len(linear.args) > 2 else linear.kwargs.get("bias")
    if isinstance(bias, Ref):
        return added(linear.name, total, bias)
    return alias(linear.name, total)


def value_of(graph: Graph, name: str) -> Value:
    """The shape of a value, or of the partial sums of a value."""
    return graph.values[name.removesuffix(":sum")]


def part_of(graph: Graph, name: str, part: Range) -> Value:
    """A value of which only some places are here."""
    value = value_of(graph, name)
    if len(value.shape) < 2:
        return value
    shape = list(value.shape)
    shape[cut_dim(graph, name)] = part[1] - part[0]
    return Value(tuple(shape), value.dtype, value.batch_dim, value.scales)


def plain_segment(
    graph: Graph,
    layers: tuple[int, int],
    number: int,
    nodes: Sequence[Node],
    takes: Iterable[str],
    gives: Iterable[str],
) -> Segment:
    """A segment on whole values: the gateway's, or that of a device that computes layers alone."""
    inputs, outputs = (dict.fromkeys(names) for names in (takes, gives))
    return _segment(graph, layers, number, nodes, inputs, outputs, {})


def after_sum_segment(
    graph: Graph, layers: tuple[int, int], number: int, division: Division, gives: Iterable[str]
) -> Segment:
    """The segment after a sum of the devices' parts: its bias, then the rest of the layer."""
    assert division.data is not None
    nodes = [bias_node(division.data), *division.after]
    results = {node.name for node in nodes}
    read = dict.fromkeys(name for node in nodes for name in refs(node))
    takes = [name for name in read if name not in results and name not in graph.state]
    return plain_segment(graph, layers, number, nodes, takes, gives)


def rows_segment(
    graph: Graph,
    layers: tuple[int, int],
    number: int,
    division: Division,
    takes: Mapping[str, Range],
    gives: Mapping[str, Range],
) -> Segment:
    """A segment that computes a strip of rows of every value in `gives`."""
    nodes = strip_nodes(graph, division.own, takes, gives, division.rules)
    return _segment(graph, layers, number, nodes, takes, gives, {})


def rows_and_data_segment(
    graph: Graph,
    layers: tuple[int, int],
    number: int,
    division: Division,
    takes: Mapping[str, Range],
    rows: Range,
) -> Segment:
    """A segment that computes rows of a map, and from them a summand of the fully connected layer that
    follows."""
    flat, linear = division.flat, division.data
    assert flat is not None
    assert linear is not None
    source = refs(flat)[0]
    behind = division.own.index(flat)
    nodes = strip_nodes(graph, division.own[:behind], takes, {source: rows}, division.rules)
    nodes.append(flattened(flat.name, source))
    nodes += division.own[behind + 1 : -1]
    weight = _weight(linear)
    outputs = graph.state[weight].shape[0]
    pick = Pick((outputs, *graph.values[source].shape[1:]), 2, *rows)
    nodes.append(_summand(linear))
    return _segment(
        graph, layers, number, nodes, takes, {sum_name(linear): (0, outputs)}, {weight: pick}
    )


def units_segment(
    graph: Graph,
    layers: tuple[int, int],
    number: int,
    division: Division,
    takes: Mapping[str, Range],
    gives: Mapping[str, Range],
    units: Range,
) -> Segment:
    """A segment for some units of fully connected layers: its outputs (model), its inputs (data), or two
    layers, one after the other."""
    nodes: list[Node] = []
    picks: dict[str, Pick] = {}
    for node in division.own:
        if node is division.data:
            weight = _weight(node)
            picks[weight] = Pick(graph.state[weight].shape, 1, *units)
            nodes.append(_summand(node))
            continue
        states = [name for name in refs(node) if name in graph.state]
        for name in states:
            shape = graph.state[name].shape
            if node is division.model or prod(shape) > 1:
                picks[name] = Pick(shape, 0, *units)
        if node is not division.model and operator_named(node.op).gives_sizes:
            node = alias(node.name, node.args[0])  # reshapes a vector to a vector
        nodes.append(renamed(node, {}, node.name))
    return _segment(graph, layers, number, nodes, takes, gives, picks)


def linear_width(graph: Graph, linear: Node) -> tuple[int, int]:
    """(outputs, inputs) of a fully connected layer."""
    shape = graph.state[_weight(linear)].shape
    return shape[0], shape[1]


def picked_state(
    graph: Graph, nodes: Iterable[Node], picks: Mapping[str, Pick]
) -> dict[str, State]:
    """The state that nodes read, with the shapes of the picked parts."""
    shapes: dict[str, State] = {}
    for node in nodes:
        for name in refs(node):
            if name in graph.state and name not in shapes:
                state = graph.state[name]
                pick = picks.get(name)
                shape = _picked_shape(state.shape, pick) if pick else state.shape
                shapes[name] = State(shape, state.dtype, state.trainable)
    return shapes


def _segment(
    graph: Graph,
    layers: tuple[int, int],
    number: int,
    nodes: Sequence[Node],
    takes: Mapping[str, Range | None],
    gives: Mapping[str, Range | None],
    picks: dict[str, Pick],
) -> Segment:
    inputs, outputs = (
        {
            name: part_of(graph, name, part) if part else value_of(graph, name)
            for name, part in values.items()
            if not is_constant(graph, name)
        }
        for values in (takes, gives)
    )
    return Segment(
        first=layers[0],
        last=layers[1],
        nodes=list(nodes),
        inputs=inputs,
        outputs=outputs,
        state=picked_state(graph, nodes, picks),
        part=number,
        picks=picks,
    )


def _picked_shape(shape: tuple[int, ...], pick: Pick) -> tuple[int, ...]:
    """The shape of a picked part. A part of a matrix is a matrix again, also if it was picked in another
    shape."""
    part = list(pick.shape)
    part[pick.dim] = pick.last - pick.first
    return (part[0], prod(part[1:])) if len(shape) == 2 else tuple(part)


def _weight(linear: Node) -> str:
    weight = linear.args[1]
    assert isinstance(weight, Ref)
    return weight.name


def _summand(linear: Node) -> Node:
    """The product alone: the bias is added once, to the sum."""
    return Node(sum_name(linear), linear.op, [linear.args[0], linear.args[1], None])
