"""Which nodes of a round the gateway computes first, which each device computes, and which the gateway
computes last.

    divide(graph, (5, 5), "data").own       # the fully connected layer's product, without its bias

The devices compute the nodes that can be cut. The gateway computes the nodes that need a whole value: the
change of a map into a vector before a fully connected layer, the bias and the following nodes after a sum, a
mean over a whole map. The gateway never computes nodes with weights: a block that would need that is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Literal, NamedTuple, NoReturn

from weft.errors import InputError
from weft.graph.network import Graph, Node, refs
from weft.graph.operators.rows import Rule, is_map
from weft.graph.operators.table import operator_named
from weft.graph.split.rows import rules_of


class Division(NamedTuple):
    """The nodes of some layers: the gateway's before, each device's own, the gateway's after."""

    before: tuple[Node, ...]
    own: tuple[Node, ...]
    after: tuple[Node, ...]
    model: Node | None = None  # a fully connected layer; each device makes some of its outputs
    # A fully connected layer; each device reads some inputs and makes a summand.
    data: Node | None = None
    flat: Node | None = None  # turns rows of a map into the vector that `data` reads
    # Of the nodes that can be cut into rows.
    rules: Mapping[str, Rule | None] = MappingProxyType({})


def divide(graph: Graph, layers: tuple[int, int], mode: str) -> Division:
    """The division of layers first..last (0-based, both included)."""
    if mode == "whole":
        return Division((), tuple(_nodes(graph, *layers)), ())
    if mode == "rows":
        return _by_rows(graph, layers)
    if mode == "rows+data":
        return _rows_and_data(graph, layers)
    if mode == "hybrid":
        return _hybrid(graph, layers)
    if layers[0] != layers[1]:
        raise InputError(
            f"a block of layers {layers[0] + 1} to {layers[1] + 1} in mode {mode}: this mode is for one "
            "fully connected layer; give every layer a block"
        )
    head, linear, tail = parts_of_linear(graph, layers[0], mode)
    if mode == "data":
        return _closed(graph, Division(tuple(head), (linear,), tuple(tail), data=linear))
    on_devices, after = _unit_tail(graph, linear, tail)
    return _closed(graph, Division(tuple(head), (linear, *on_devices), tuple(after), model=linear))


def kind_of(graph: Graph, layer: int) -> Literal["rows", "units", "whole"]:
    """How a layer can be cut: rows of a map, units of a fully connected layer, not at all."""
    for mode, kind in (("rows", "rows"), ("data", "units")):
        try:
            divide(graph, (layer, layer), mode)
        except InputError:
            continue
        return "rows" if kind == "rows" else "units"
    return "whole"


def weighted(graph: Graph, node: Node) -> bool:
    """Whether it multiplies with a matrix or kernel of its own: what costs time."""
    record = operator_named(node.op)
    if record.elementwise or record.view:
        return False
    return any(len(graph.state[name].shape) > 1 for name in refs(node) if name in graph.state)


def is_constant(graph: Graph, name: str) -> bool:
    """Whether a value is the same for every batch, so that any device can compute it."""
    return name in graph.values and not graph.values[name].scales


def reads(graph: Graph, nodes: Iterable[Node]) -> list[str]:
    """The values that nodes read and do not make themselves, in order. State and constants are left out."""
    nodes = list(nodes)
    results = {node.name for node in nodes}
    return [
        name
        for name in dict.fromkeys(name for node in nodes for name in refs(node))
        if name not in results and name not in graph.state
    ]


def parts_of_linear(graph: Graph, layer: int, mode: str) -> tuple[list[Node], Node, list[Node]]:
    """(the nodes before a layer's fully connected operator, the operator, the nodes after it)."""
    nodes = [node for node in graph.layers[layer].nodes if not is_constant(graph, node.name)]
    heavy = [node for node in nodes if weighted(graph, node)]
    if len(heavy) != 1 or not _is_dense(graph, heavy[0]):
        kinds = ", ".join(node.op for node in heavy) or "nothing with weights"
        raise InputError(
            f"layer {layer + 1} ({graph.layers[layer].name}) has {kinds}; mode {mode} needs one fully "
            "connected operator on vectors. Use mode rows or whole for it"
        )
    linear = heavy[0]
    above = _ancestors(nodes, linear)
    head = [node for node in nodes if node.name in above]
    tail = [node for node in nodes if node.name not in above and node is not linear]
    return head, linear, tail


def is_unitwise(graph: Graph, node: Node, width: int) -> bool:
    """Whether every unit of a vector of this width depends only on the same unit of its operands."""
    shape = (1, width)
    units = operator_named(node.op).units
    same = units == "elementwise" or (units == "reshape" and len(refs(node)) == 1)
    if not same or node.name not in graph.values or graph.values[node.name].shape != shape:
        return False
    for name in refs(node):
        if name in graph.state:
            fits = graph.state[name].shape == (width,) or prod(graph.state[name].shape) == 1
        else:
            value = graph.values[name]
            fits = value.shape == shape if value.scales else prod(value.shape) == 1
        if not fits:
            return False
    return True


def is_flatten(graph: Graph, node: Node) -> bool:
    """Whether a node turns each sample's map into a vector."""
    if operator_named(node.op).units != "reshape":
        return False
    before, after = graph.values[refs(node)[0]], graph.values[node.name]
    return is_map(before) and after.shape == (1, prod(before.shape[1:]))


def _is_dense(graph: Graph, node: Node) -> bool:
    """Whether it is a fully connected layer on vectors, one for each sample. PyTorch's attention has
    tokens and samples in one dimension: a vector for each token."""
    value = graph.values[node.name]
    dense = operator_named(node.op).units == "dense"
    return dense and len(value.shape) == 2 and value.batch_dim == 0


def _nodes(graph: Graph, first: int, last: int) -> list[Node]:
    return [node for layer in graph.layers[first : last + 1] for node in layer.nodes]


def _ancestors(nodes: Sequence[Node], node: Node) -> set[str]:
    needed = set(refs(node))
    for other in reversed(nodes):
        if other.name in needed:
            needed.update(refs(other))
    return needed


def _by_rows(graph: Graph, layers: tuple[int, int]) -> Division:
    return _closed(graph, _cut_rows(graph, _nodes(graph, *layers), layers))


def _cut_rows(graph: Graph, nodes: list[Node], layers: tuple[int, int]) -> Division:
    rules = rules_of(graph, nodes)
    where: dict[str, str] = {}
    for node in nodes:
        if is_constant(graph, node.name):
            continue
        sources = {where.get(name, "before") for name in refs(node)}
        if "after" in sources:
            where[node.name] = "after"
        elif rules[node.name] is not None:
            where[node.name] = "own"
        else:
            where[node.name] = "after" if "own" in sources else "before"
        if where[node.name] != "own" and weighted(graph, node):
            raise InputError(
                f"layers {layers[0] + 1} to {layers[1] + 1} cannot be cut into rows: {node.name} "
                f"({node.op}) needs whole values. Begin a new block there, or use mode whole"
            )
    # A value that is made of weights alone (a class token) is made where the samples are that it goes with.
    for node in nodes:
        if where.get(node.name) == "before" and all(name in graph.state for name in refs(node)):
            readers = {where.get(other.name) for other in nodes if node.name in refs(other)}
            where[node.name] = "after" if readers == {"after"} else "before"
    before, on_devices, after = (
        tuple(node for node in nodes if where.get(node.name) == part)
        for part in ("before", "own", "after")
    )
    return Division(before, on_devices, after, rules=rules)


def _unit_tail(graph: Graph, linear: Node, tail: Iterable[Node]) -> tuple[list[Node], list[Node]]:
    """(the nodes that a device can compute on its own units of a fully connected layer's result, the other
    nodes)."""
    width = graph.values[linear.name].shape[1]
    on_devices: list[Node] = []
    after: list[Node] = []
    gone: set[str] = set()
    for node in tail:
        if is_unitwise(graph, node, width) and gone.isdisjoint(refs(node)):
            on_devices.append(node)
        else:
            after.append(node)
            gone.add(node.name)
    return on_devices, after


def _hybrid(graph: Graph, layers: tuple[int, int]) -> Division:
    first, last = layers
    if last != first + 1:
        raise InputError(
            f"a hybrid block of layers {first + 1} to {last + 1}; it must have two fully connected layers"
        )
    head, model, tail = parts_of_linear(graph, first, "hybrid")
    between, data, rest = parts_of_linear(graph, last, "hybrid")
    on_devices, after = _unit_tail(graph, model, [*tail, *between])
    if after:
        _refuse(graph, layers, "hybrid", after[0].name, "needs the whole vector")
    whole = Division(tuple(head), (model, *on_devices, data), tuple(rest), model=model, data=data)
    return _only_sums(graph, layers, "hybrid", _closed(graph, whole))


def _rows_and_data(graph: Graph, layers: tuple[int, int]) -> Division:
    first, last = layers
    head, linear, tail = parts_of_linear(graph, last, "rows+data")
    flat = next((node for node in head if is_flatten(graph, node)), None)
    if first == last or flat is None:
        _refuse(
            graph, layers, "rows+data", linear.name, "does not follow on a map of a convolution"
        )
    below = head[head.index(flat) + 1 :]
    width = graph.values[flat.name].shape[1]
    for node in below:
        if not is_unitwise(graph, node, width) or any(name in graph.state for name in refs(node)):
            _refuse(graph, layers, "rows+data", node.name, "needs the whole vector")
    nodes = [*_nodes(graph, first, last - 1), *head[: head.index(flat)]]
    rows = _cut_rows(graph, nodes, layers)
    if rows.after:
        _refuse(graph, layers, "rows+data", rows.after[0].name, "needs the whole map")
    on_devices = (*rows.own, flat, *below, linear)
    whole = Division(rows.before, on_devices, tuple(tail), data=linear, flat=flat, rules=rows.rules)
    return _only_sums(graph, layers, "rows+data", _closed(graph, whole))


def _only_sums(graph: Graph, layers: tuple[int, int], mode: str, division: Division) -> Division:
    """Refuses a block whose devices would have to give another value besides their summands."""
    later = {*graph.cuts[layers[1] + 1], *reads(graph, division.after)}
    for node in division.own:
        if node.name in later and node is not division.data and not is_constant(graph, node.name):
            _refuse(graph, layers, mode, node.name, "is also needed elsewhere")
    return division


def _refuse(graph: Graph, layers: tuple[int, int], mode: str, name: str, why: str) -> NoReturn:
    raise InputError(
        f"layers {layers[0] + 1} to {layers[1] + 1} cannot be one block in mode {mode}: {name} {why}. "
        "Use a block of mode rows and one of mode data or model"
    )


def _closed(graph: Graph, division: Division) -> Division:
    """Adds constants to every part that reads them."""
    layers = graph.layers
    constants = [n for layer in layers for n in layer.nodes if is_constant(graph, n.name)]
    if not constants:
        return division
    parts = [
        (*[n for n in constants if n.name in _read_by(constants, part)], *part)
        for part in (division.before, division.own, division.after)
    ]
    return division._replace(before=parts[0], own=parts[1], after=parts[2])


def _read_by(constants: Sequence[Node], nodes: Iterable[Node]) -> set[str]:
    needed = {name for node in nodes for name in refs(node)}
    for node in reversed(constants):
        if node.name in needed:
            needed.update(refs(node))
    return needed
