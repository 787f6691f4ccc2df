"""Nodes that compute some rows of their results, from some rows of their inputs.

Only the true borders of a map are padded. A strip in the middle gets its neighbours' rows instead. A strip at
the top gets padding above but not below. So the padding of rows becomes a separate node (zeros; minus
infinity under a maximum), and the operator keeps the padding of columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.graph.network import Arg, Atom, Batch, Graph, Node, Ref
from weft.graph.operators.calls import divided, narrow, ones_like, padded
from weft.graph.operators.rows import Range, Rows, Rule, argument, both
from weft.graph.operators.table import operator_named
from weft.graph.split.rows import cut_dim, needed_rows, places


def strip_nodes(
    graph: Graph,
    nodes: Sequence[Node],
    takes: Mapping[str, Range],
    gives: Mapping[str, Range],
    rules: Mapping[str, Rule | None],
) -> list[Node]:
    """`nodes` rewritten: they read rows `takes` of the inputs and make rows `gives`, by their names."""
    writer = _StripWriter(graph, takes, gives)
    rows = needed_rows(graph, nodes, gives, rules)
    for node in nodes:
        rule = rules[node.name]
        if node.name in rows and rule is not None:
            writer.write(node, rule, rows[node.name])
    return writer.nodes


def renamed(node: Node, names: Mapping[str, str], name: str) -> Node:
    """The same call under another name, reading other names."""

    def atom(a: Atom) -> Atom:
        return Ref(names.get(a.name, a.name)) if isinstance(a, Ref) else a

    args: list[Arg] = [[atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args]
    return Node(name, node.op, args, node.kwargs)


class _StripWriter:
    def __init__(
        self, graph: Graph, takes: Mapping[str, Range], gives: Mapping[str, Range]
    ) -> None:
        self.graph = graph
        self.gives = gives
        self.nodes: list[Node] = []
        self._have = {value: (value, rows) for value, rows in takes.items()}
        self._cuts: dict[tuple[str, Range], str] = {}

    def write(self, node: Node, rule: Rule, rows: Range) -> None:
        made = rows
        if rule.takes_all:
            made = self._have[rule.maps[0]][1]
        elif rule.repeat > 1:
            made = (rows[0] // rule.repeat * rule.repeat, -(-rows[1] // rule.repeat) * rule.repeat)
        name = node.name
        if self.gives.get(name, made) != made:  # more rows are made inside than are given
            name = f"{name}:all"
        how = operator_named(node.op).rows
        if how is None or self._untouched(node, rule, made):
            whole = {v: self._have[v][0] for v in (*rule.maps, *rule.whole)}
            self.nodes.append(renamed(node, whole, name))
        elif how.padding is not None:
            self._windows(node, rule, how, made, name)
        elif how.pads:
            self._pad_node(node, rule, made, name)
        else:
            self._plain(node, rule, how, made, name)
        self._have[node.name] = (name, made)
        if name != node.name:
            first, last = self.gives[node.name]
            self.nodes.append(narrow(node.name, name, rule.axis, first - made[0], last - first))

    def _untouched(self, node: Node, rule: Rule, rows: Range) -> bool:
        """Whether a node reads and makes whole maps. Then it is not changed."""
        every = [(node.name, rows), *((v, self._have[v][1]) for v in rule.maps)]
        return all(have == (0, places(self.graph, v)) for v, have in every)

    def _plain(self, node: Node, rule: Rule, how: Rows, rows: Range, name: str) -> None:
        span = rule.span(*rows)
        names = {v: self._have[v][0] if rule.takes_all else self._cut(v, span) for v in rule.maps}
        names |= {v: self._have[v][0] for v in rule.whole}
        if how.in_strip is not None:
            node = how.in_strip(node, rows)
        if rule.resize is not None:
            node = _resized(node, rule.resize, rows[1] - rows[0])
        self.nodes.append(renamed(node, names, name))

    def _windows(self, node: Node, rule: Rule, how: Rows, rows: Range, name: str) -> None:
        """A convolution or pool. Its padding of rows becomes a node, or is replaced by rows of another
        strip."""
        source = rule.maps[0]
        span = rule.span(*rows)
        height = places(self.graph, source)
        outside = span[0] < 0 or span[1] > height
        if outside and how.averages and self._uneven(node, rule, span):
            self._averages(node, rule, span, name)
            return
        around = self._padded(source, span, f"{node.name}:pad", how.fill) if outside else ""
        names = {source: around or self._cut(source, span)}
        self.nodes.append(renamed(_without_row_padding(node, how), names, name))

    def _pad_node(self, node: Node, rule: Rule, rows: Range, name: str) -> None:
        columns = argument(node, 1, "pad", [])[:2]
        fill = argument(node, 3, "value", None)
        self._padded(rule.maps[0], rule.span(*rows), name, 0.0 if fill is None else fill, columns)

    def _uneven(self, node: Node, rule: Rule, span: Range) -> bool:
        """Whether an average at the border counts fewer places than elsewhere."""
        if argument(node, 6, "divisor_override", None) is not None:
            return False
        height = places(self.graph, rule.maps[0])
        counts_padding = argument(node, 5, "count_include_pad", True)
        return not counts_padding or span[1] > height + rule.above

    def _averages(self, node: Node, rule: Rule, span: Range, name: str) -> None:
        """An average over the places inside the map: the average with zeros, divided by the share of places
        inside."""
        source = rule.maps[0]
        _, _, height, width = self.graph.values[source].shape
        kernel = both(node.args[1])
        stride = both(argument(node, 2, "stride", None) or node.args[1])
        side = both(argument(node, 3, "padding", 0))[1]
        count = self.graph.values[node.name].shape[3]
        right = max((count - 1) * stride[1] - side + kernel[1] - width, 0)
        filled = self._padded(source, span, f"{node.name}:pad", 0.0, [side, right])
        inside = (max(span[0], 0), min(span[1], height))
        one, mask = f"{node.name}:one", f"{node.name}:mask"
        self.nodes.append(narrow(f"{one}:row", self._cut(source, inside), 1, 0, 1))
        self.nodes.append(ones_like(one, f"{one}:row"))
        # Places in the padding may count; places beyond the padding never do.
        if argument(node, 5, "count_include_pad", True):
            counted = (span[0], min(span[1], height + rule.above))
            around: list[Atom] = [
                side,
                min(right, side),
                inside[0] - counted[0],
                counted[1] - inside[1],
            ]
            self.nodes.append(padded(f"{one}:pad", one, around, 1.0))
            one, right, inside = f"{one}:pad", right - min(right, side), counted
            side = 0
        rest: list[Atom] = [side, right, inside[0] - span[0], span[1] - inside[1]]
        self.nodes.append(padded(mask, one, rest, 0.0))
        for part in (filled, mask):
            args: list[Arg] = [Ref(part), list(kernel), list(stride), [0, 0], False, True, None]
            self.nodes.append(Node(f"{part}:mean", node.op, args))
        self.nodes.append(divided(name, f"{filled}:mean", f"{mask}:mean"))

    def _padded(
        self, value: str, span: Range, name: str, fill: Arg, columns: Sequence[Atom] = (0, 0)
    ) -> str:
        """Rows `span` of a value, those beyond its borders filled."""
        height = places(self.graph, value)
        first, last = max(span[0], 0), min(span[1], height)
        if first >= last:  # only padding: fill around some row, then drop that row
            first, last = (0, 1) if last <= 0 else (height - 1, height)
        top, bottom = max(first - span[0], 0), max(span[1] - last, 0)
        signal = len(self.graph.values[value].shape) == 3  # has no columns
        amounts: list[Atom] = [top, bottom] if signal else [*columns, top, bottom]
        source = self._cut(value, (first, last))
        extra = last - first + top + bottom - (span[1] - span[0])
        filled = f"{name}:more" if extra else name
        self.nodes.append(padded(filled, source, amounts, fill))
        if extra:
            after = 0 if span[0] < 0 else extra
            self.nodes.append(
                narrow(name, filled, cut_dim(self.graph, value), after, span[1] - span[0])
            )
        return name

    def _cut(self, value: str, rows: Range) -> str:
        """The name of these rows of a value. They are cut out if the strip has more rows."""
        name, have = self._have[value]
        if have == rows:
            return name
        if (value, rows) not in self._cuts:
            cut = f"{value}:{rows[0]}-{rows[1]}"
            length = rows[1] - rows[0]
            self.nodes.append(
                narrow(cut, name, cut_dim(self.graph, value), rows[0] - have[0], length)
            )
            self._cuts[value, rows] = cut
        return self._cuts[value, rows]


def _without_row_padding(node: Node, how: Rows) -> Node:
    position = how.padding
    assert position is not None
    padding = argument(node, position, "padding", 0)
    rows, columns = both(padding)
    if not rows:
        return node
    args, kwargs = list(node.args), dict(node.kwargs)
    left: list[Atom] = [0, columns] if how.rule is not None else [0]  # a signal has no columns
    if position < len(args):
        args[position] = left
    else:
        kwargs["padding"] = left
    return Node(node.name, node.op, args, kwargs)


def _resized(node: Node, position: int, rows: int) -> Node:
    """A view whose sizes say how many rows there are, for fewer rows."""
    sizes = node.args[1]
    assert isinstance(sizes, list)
    old = sizes[position]
    if old == -1:
        return node
    size: Atom = Batch(rows, old.plus) if isinstance(old, Batch) else rows
    args: list[Arg] = [node.args[0], [*sizes[:position], size, *sizes[position + 1 :]]]
    return Node(node.name, node.op, [*args, *node.args[2:]], node.kwargs)
