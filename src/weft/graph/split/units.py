"""Segments that compute listed units of a layer, for networks spread neuron by neuron, channel by channel.

    listed_segment(graph, 2, part=4, units=(5, 9, 12), columns=(0, 1, 40, 41))

The weight's rows are the units, in their order; its columns are the units of the layer before in the order
in which their owners' messages are joined. So the input is a plain concatenation of messages. `unit_parts`
says which layers can be spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.errors import InputError
from weft.graph.network import Graph, Node, Pick, Ref, Segment, State, Value, refs
from weft.graph.operators.calls import alias, joined, narrow, zeroed
from weft.graph.operators.table import operator_named
from weft.graph.split.unit_parts import places_of, skips, unit_parts


def unit_widths(graph: Graph) -> tuple[int, ...]:
    """The hidden layers' numbers of units. Raises InputError if a layer cannot be spread."""
    last = len(graph.layers) - 1
    if last < 1:
        raise InputError(f"{graph.name} has one layer; a network that is spread by units needs two")
    for layer in range(last + 1):
        unit_parts(graph, layer)
    return tuple(graph.values[output_of(graph, layer)].shape[1] for layer in range(last))


def input_of(graph: Graph, layer: int) -> str:
    """The one value that a layer reads."""
    return graph.cuts[layer][0]


def output_of(graph: Graph, layer: int) -> str:
    """The one value that a layer gives to the next."""
    return graph.cuts[layer + 1][0]


def listed_segment(
    graph: Graph,
    layer: int,
    part: int,
    units: Sequence[int] = (),
    columns: Sequence[int] = (),
    *,
    with_loss: bool = False,
) -> Segment:
    """A segment for the listed units of a layer (empty: all) and the listed inputs (empty: all, in order)."""
    before, rest = unit_parts(graph, layer)
    if units:
        rest = tuple(_reshaped(node) for node in rest)
        skipping = {node.name for node in skips(graph, layer)}
        if skipping:
            picked = own_places(graph, layer, units, columns)
            rest = tuple(_reading(node, picked[-1].name, graph, layer) if node.name in skipping else node
                         for node in rest)  # fmt: skip
            before = (*before, *picked)
    nodes = (*before, *rest)
    source, result = input_of(graph, layer), output_of(graph, layer)
    picks = _picks(graph, layer, nodes, tuple(units), tuple(columns))
    state = {name: _state(graph.state[name], picks.get(name)) for name in _read(graph, nodes)}
    if with_loss and graph.loss:
        state |= {name: graph.state[name] for name in graph.loss.state}
    return Segment(
        first=layer,
        last=layer,
        nodes=list(nodes),
        inputs={source: _cut(graph.values[source], len(columns))},
        outputs={result: _cut(graph.values[result], len(units))},
        state=state,
        loss=graph.loss if with_loss else None,
        part=part,
        picks=picks,
    )


def own_places(
    graph: Graph, layer: int, units: Sequence[int], columns: Sequence[int]
) -> list[Node]:
    """Nodes that pick from a layer's input the units that a skip connection adds to the same units of its
    output. The last node has them all, in their order; a unit that nobody has any more counts as zero."""
    source = input_of(graph, layer)
    place = {unit: k for k, unit in enumerate(columns or range(graph.values[source].shape[1]))}
    runs: list[tuple[int, int, bool]] = []  # place, length, whether it is there at all
    for unit in units:
        at, there = place.get(unit, 0), unit in place
        if runs and there and runs[-1][2] and runs[-1][0] + runs[-1][1] == at:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, True)
        else:
            runs.append((at, 1, there))
    nodes: list[Node] = []
    parts: list[Ref] = []
    for number, (at, length, there) in enumerate(runs):
        nodes.append(narrow(f"{source}_skip{number}", source, 1, at, length))
        if not there:
            nodes.append(zeroed(f"{source}_gone{number}", nodes[-1].name))
        parts.append(Ref(nodes[-1].name))
    return [*nodes, joined(f"{source}_skipped", parts, 1)]


def _reading(node: Node, name: str, graph: Graph, layer: int) -> Node:
    """The same node on another value in place of the layer's input."""
    source = input_of(graph, layer)
    args = [Ref(name) if arg == Ref(source) else arg for arg in node.args]
    return Node(node.name, node.op, args, node.kwargs)


def _read(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    every = (name for node in nodes for name in refs(node) if name in graph.state)
    return list(dict.fromkeys(every))


def _picks(
    graph: Graph,
    layer: int,
    nodes: Sequence[Node],
    units: tuple[int, ...],
    columns: tuple[int, ...],
) -> dict[str, Pick]:
    if not units and not columns:
        return {}
    picks: dict[str, Pick] = {}
    for name in _read(graph, nodes):
        shape = graph.state[name].shape
        across: tuple[int, ...] = ()
        if len(shape) > 1 and columns:
            places = range(places_of(graph, layer, shape[1]))
            across = tuple(unit * len(places) + place for unit in columns for place in places)
        if prod(shape) > 1 and (units or across):
            count = len(units) if units else shape[0]
            picks[name] = Pick(shape, 0, 0, count, rows=units, columns=across)
    return picks


def _state(state: State, pick: Pick | None) -> State:
    if pick is None:
        return state
    shape = list(state.shape)
    for dim, places in ((0, pick.rows), (1, pick.columns)):
        if places:
            shape[dim] = len(places)
    return State(tuple(shape), state.dtype, state.trainable)


def _cut(value: Value, count: int) -> Value:
    if not count:
        return value
    return Value((value.shape[0], count, *value.shape[2:]), value.dtype, value.batch_dim)


def _reshaped(node: Node) -> Node:
    """A reshape of a vector to a vector, whose number of units is no longer right."""
    if operator_named(node.op).gives_sizes:
        return alias(node.name, node.args[0])
    return node
