"""Which rows of its inputs a part of a network needs for some rows of its results.

    needed_rows(graph, nodes, {"conv2d_1": (4, 8)})    # {"conv2d_1": (4, 8), "conv2d": (3, 9), ...}

Each operator's own rule is in its record (weft.graph.operators.rows). Ranges are first..last-1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weft.errors import InputError
from weft.graph.network import Graph, Node, Value, refs
from weft.graph.operators.rows import Range, Rule, is_map
from weft.graph.operators.table import operator_named


def rules_of(graph: Graph, nodes: Iterable[Node]) -> dict[str, Rule | None]:
    """The rule of every node that can be cut into rows; None for the others."""
    return {node.name: rule_of(graph, node) for node in nodes}


def rule_of(graph: Graph, node: Node) -> Rule | None:
    """How the rows of a node's result depend on rows of its inputs; None if it cannot be cut into rows."""
    read = tuple(dict.fromkeys(name for name in refs(node) if name not in graph.state))
    value = graph.values.get(node.name)
    if value is None:
        return None
    if not value.scales:  # a constant: each device that needs it computes it
        return Rule((), read)
    if not is_map(value):
        return None
    rows = operator_named(node.op).rows
    if rows is None:
        return None
    if rows.maps_only and not all(is_map(graph.values.get(name)) for name in read):
        return None
    return rows.rule(graph, node, read)


def needed_rows(
    graph: Graph,
    nodes: Sequence[Node],
    wanted: Mapping[str, Range],
    rules: Mapping[str, Rule | None] | None = None,
) -> dict[str, Range]:
    """The rows that are needed of every value that `nodes` make and read, to get the wanted rows.

    They are clipped at the true borders. If all windows lie in the padding of a map, one row is asked for,
    because a strip is never empty. `rules`: the rules of the nodes, if the caller has them already.
    """
    rows = dict(wanted)
    for node in reversed(nodes):
        if node.name not in rows:
            continue
        rule = rules[node.name] if rules is not None else rule_of(graph, node)
        if rule is None:
            raise InputError(
                f"{node.name} ({node.op}) reads all rows of a map at once and cannot be cut into rows; "
                "end the block before it"
            )
        if rule.maps:
            span = rule.span(*rows[node.name])
            for name in rule.maps:
                _widen(rows, name, _clipped(span, graph.values[name].shape[2]))
        for name in rule.whole:
            _widen(rows, name, (0, places(graph.values[name])))
    return rows


def rows_made(
    graph: Graph,
    nodes: Sequence[Node],
    there: Mapping[str, Range],
    rules: Mapping[str, Rule | None],
) -> dict[str, Range]:
    """The rows of every value that `nodes` can make from the given rows: the inverse of `needed_rows`."""
    rows = {name: span for name, span in there.items() if span[0] < span[1]}
    for node in nodes:
        rule = rules.get(node.name)
        whole = rule is not None and all(
            rows.get(name) == (0, places(graph.values[name])) for name in rule.whole
        )
        if rule is None or not whole or any(name not in rows for name in rule.maps):
            continue
        first, last = 0, places(graph.values[node.name])
        for name in rule.maps:
            span = rule.within(rows[name], graph.values[name].shape[2], last)
            first, last = max(first, span[0]), min(last, span[1])
        if first < last:
            rows[node.name] = first, last
    return rows


def places(value: Value) -> int:
    """How many places a value has in the dimension in which it is cut: rows, else units."""
    if len(value.shape) == 4:
        return value.shape[2]
    return value.shape[1] if len(value.shape) > 1 else 1


def _clipped(span: Range, height: int) -> Range:
    first, last = max(span[0], 0), min(span[1], height)
    if first < last:
        return first, last
    return (0, 1) if last <= 0 else (height - 1, height)


def _widen(rows: dict[str, Range], name: str, span: Range) -> None:
    had = rows.get(name)
    rows[name] = span if had is None else (min(had[0], span[0]), max(had[1], span[1]))
