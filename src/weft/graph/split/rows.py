"""Which rows of its inputs a part of a network needs for some rows of its results.

    needed_rows(graph, nodes, {"conv2d_1": (4, 8)})    # {"conv2d_1": (4, 8), "conv2d": (3, 9), ...}

Each operator's own rule is in its record (weft.graph.operators.rows). Ranges are first..last-1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from weft.errors import InputError
from weft.graph.network import Graph, Node, refs
from weft.graph.operators.rows import Range, Rule, is_map
from weft.graph.operators.table import operator_named


class RowView(NamedTuple):
    """A network seen as rows: for every node its rule, for every value which dimension counts rows, and
    how many there are."""

    rules: dict[str, Rule | None]
    axes: dict[str, int]
    heights: dict[str, int]


def row_view(graph: Graph) -> RowView:
    """The view of a graph; found once."""
    known: RowView | None = graph.__dict__.get("row_view")
    if known is None:
        known = graph.__dict__["row_view"] = _row_view(graph)
    return known


def rules_of(graph: Graph, nodes: Iterable[Node]) -> dict[str, Rule | None]:
    """The rule of every node that can be cut into rows; None for the others."""
    return {node.name: rule_of(graph, node) for node in nodes}


def rule_of(graph: Graph, node: Node) -> Rule | None:
    """How the rows of a node's result come from rows of what it reads; None if they do not."""
    return row_view(graph).rules.get(node.name)


def _row_view(graph: Graph) -> RowView:
    axes: dict[str, int] = {}
    rules: dict[str, Rule | None] = {}
    heights: dict[str, int] = {}
    nodes = [node for layer in graph.layers for node in layer.nodes]
    readers = Counter(name for node in nodes for name in refs(node))
    for node in nodes:
        rule = _rule(graph, node, axes)
        value = graph.values.get(node.name)
        if value is not None and value.batch_dim is None and value.scales:
            # Samples and rows are one dimension: it can go on, but nothing can be cut out of it.
            rule = rule if readers[node.name] == 1 else None
        rules[node.name] = rule
        if rule is not None and rule.maps:
            axes[node.name] = rule.axis
            if value is None:  # several results
                source = rule.maps[0]
                heights[node.name] = graph.values[source].shape[axes[source]]
    for name, value in graph.values.items():
        if name not in axes and is_map(value):
            axes[name] = 2
        if name in axes:
            heights[name] = value.shape[axes[name]]
    return RowView(rules, axes, heights)


def _rule(graph: Graph, node: Node, axes: dict[str, int]) -> Rule | None:
    read = tuple(dict.fromkeys(name for name in refs(node) if name not in graph.state))
    value = graph.values.get(node.name)
    if value is not None and not value.scales:  # a constant; whoever needs it makes it
        return Rule((), read)
    rows = operator_named(node.op).rows
    if rows is None:
        return None
    maps = [name for name in read if is_map(graph.values.get(name))]
    as_maps = is_map(value) and all(axes.get(name, 2) == 2 for name in maps)
    if rows.rule is not None and as_maps and (not rows.maps_only or len(maps) == len(read)):
        rule = rows.rule(graph, node, read)
        if rule is not None:
            return rule
    if rows.sequence is None:
        return None
    for name in maps:
        axes.setdefault(name, 2)
    return rows.sequence(graph, node, read, axes)


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
    rows, heights = dict(wanted), row_view(graph).heights
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
                _widen(rows, name, _clipped(span, heights[name]))
        for name in rule.whole:
            _widen(rows, name, (0, places(graph, name)))
    return rows


def rows_made(
    graph: Graph,
    nodes: Sequence[Node],
    there: Mapping[str, Range],
    rules: Mapping[str, Rule | None],
) -> dict[str, Range]:
    """The rows of every value that `nodes` can make from the given rows: the inverse of `needed_rows`."""
    rows = {name: span for name, span in there.items() if span[0] < span[1]}
    heights = row_view(graph).heights
    for node in nodes:
        rule = rules.get(node.name)
        whole = rule is not None and all(
            rows.get(name) == (0, places(graph, name)) for name in rule.whole
        )
        if rule is None or not whole or any(name not in rows for name in rule.maps):
            continue
        first, last = 0, places(graph, node.name)
        for name in rule.maps:
            span = rule.within(rows[name], heights[name], last)
            first, last = max(first, span[0]), min(last, span[1])
        if first < last:
            rows[node.name] = first, last
    return rows


def places(graph: Graph, name: str) -> int:
    """How many places a value (or its partial sums) has in the dimension in which it is cut."""
    name = name.removesuffix(":sum")
    heights = row_view(graph).heights
    if name in heights:
        return heights[name]
    shape = graph.values[name].shape
    return shape[1] if len(shape) > 1 else 1


def cut_dim(graph: Graph, name: str) -> int:
    """The dimension in which a value (or its partial sums) is cut: its rows, else its units."""
    return row_view(graph).axes.get(name.removesuffix(":sum"), 1)


def _clipped(span: Range, height: int) -> Range:
    first, last = max(span[0], 0), min(span[1], height)
    if first < last:
        return first, last
    return (0, 1) if last <= 0 else (height - 1, height)


def _widen(rows: dict[str, Range], name: str, span: Range) -> None:
    had = rows.get(name)
    rows[name] = span if had is None else (min(had[0], span[0]), max(had[1], span[1]))
