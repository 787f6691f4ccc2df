"""Which rows of its inputs a part of a network needs for some rows of its results.

    needed_rows(graph, nodes, {"conv2d_1": (4, 8)})    # {"conv2d_1": (4, 8), "conv2d": (3, 9), ...}

A feature map has the dimensions (samples, channels, rows, columns). Convolutions and pools read a window
of rows, activations the row itself; what reads all rows at once (a mean over the map, a softmax over
rows, a change of shape) cannot be cut and has no rule here. Ranges are first..last-1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from weft.errors import InputError
from weft.graph.network import Graph, Node, Ref, Value, refs

Range = tuple[int, int]

# One place of the result depends on that place of each operand alone.
ELEMENTWISE = frozenset(
    f"aten.{name}" + ("" if "." in name else ".default")
    for name in """
    abs add.Scalar add.Tensor alias alpha_dropout batch_norm ceil celu clamp clamp_min clone contiguous
    cos detach div.Scalar div.Tensor dropout elu eq.Scalar eq.Tensor erf exp feature_dropout floor
    full_like ge.Scalar gelu gt.Scalar hardshrink hardsigmoid hardswish hardtanh le.Scalar leaky_relu
    log log1p log_sigmoid logical_and logical_not logical_or lt.Scalar masked_fill.Scalar maximum
    minimum mish mul.Scalar mul.Tensor ne.Scalar neg ones_like pow.Tensor_Scalar pow.Tensor_Tensor
    prelu reciprocal relu relu6 rsqrt rsub.Scalar selu sigmoid silu sin softplus softshrink sqrt
    square sub.Scalar sub.Tensor tanh threshold to.dtype where.self zeros_like
    """.split()  # noqa: SIM905 (a wall of quotes would hide the names)
)
_PER_CHANNEL = {"aten.batch_norm.default", "aten.prelu.default"}  # their state has no rows
_SOFTMAX = {"aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int",
            "aten._log_softmax.default"}  # fmt: skip


class Rule(NamedTuple):
    """How rows of a result come from rows of what it reads; by default row r from row r.

    A window of `reach` rows begins at row `stride * r - above`; each makes `repeat` rows of the result.
    """

    maps: tuple[str, ...]  # of which the rows are cut
    whole: tuple[str, ...] = ()  # of which all is needed: constants, values without rows
    stride: int = 1
    above: int = 0  # rows of padding over the map
    reach: int = 1
    repeat: int = 1

    @property
    def row_by_row(self) -> bool:
        """Whether row r comes from row r alone."""
        return self.stride == self.reach == self.repeat == 1 and not self.above

    def span(self, first: int, last: int) -> Range:
        """Rows of the maps under the windows of rows first..last-1, beyond the borders too."""
        top, bottom = first // self.repeat, (last - 1) // self.repeat
        return top * self.stride - self.above, bottom * self.stride - self.above + self.reach

    def within(self, rows: Range, height: int, made: int) -> Range:
        """Rows of the result, of which there are `made`, whose windows lie within some rows of a map."""
        top = -(-(rows[0] + self.above) // self.stride) * self.repeat if rows[0] > 0 else 0
        bottom = ((rows[1] + self.above - self.reach) // self.stride + 1) * self.repeat
        return top, made if rows[1] >= height else bottom


def argument(node: Node, position: int, name: str, default: Any) -> Any:
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)


def both(arg: Any) -> tuple[int, int]:
    """(for rows, for columns) of an argument that may give one number for both."""
    if isinstance(arg, list):
        return (arg[0], arg[-1])
    return (arg, arg)


def rules_of(graph: Graph, nodes: Iterable[Node]) -> dict[str, Rule | None]:
    """A rule for every node that can be cut into rows, None for the others."""
    return {node.name: rule_of(graph, node) for node in nodes}


def rule_of(graph: Graph, node: Node) -> Rule | None:
    read = tuple(dict.fromkeys(name for name in refs(node) if name not in graph.state))
    value = graph.values.get(node.name)
    if value is None:
        return None
    if not value.scales:  # a constant; whoever needs it makes it
        return Rule((), read)
    if not is_map(value):
        return None
    if node.op in ELEMENTWISE:
        return _elementwise(graph, node, value, read)
    make = _RULES.get(node.op)
    if make is None or not all(is_map(graph.values.get(name)) for name in read):
        return None
    return make(graph, node, read)


def is_map(value: Value | None) -> bool:
    return value is not None and len(value.shape) == 4 and value.batch_dim == 0


def needed_rows(
    graph: Graph,
    nodes: Sequence[Node],
    wanted: Mapping[str, Range],
    rules: Mapping[str, Rule | None] | None = None,
) -> dict[str, Range]:
    """Rows of every value that `nodes` make and read, so that the wanted rows come out.

    Clipped at the true borders. Of a map whose windows lie wholly in the padding one row is asked
    for, as a strip is never empty. `rules`: those of the nodes, where they are at hand.
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
    """Rows of every value that `nodes` can make of the rows there are: `needed_rows` the other way."""
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


def _elementwise(graph: Graph, node: Node, value: Value, read: Sequence[str]) -> Rule | None:
    maps, whole = [], []
    for name in read:
        operand = graph.values[name]
        if is_map(operand) and operand.shape[2] == value.shape[2]:
            maps.append(name)
        elif operand.batch_dim == 0 and len(operand.shape) != 4:
            return None  # its samples would be taken for channels or rows
        elif _without_rows(operand.shape):
            whole.append(name)
        else:
            return None
    if node.op not in _PER_CHANNEL:
        shapes = [graph.state[name].shape for name in refs(node) if name in graph.state]
        if not all(map(_without_rows, shapes)):
            return None
    return Rule(tuple(maps), tuple(whole)) if maps else None


def _without_rows(shape: tuple[int, ...]) -> bool:
    return len(shape) < 2 or shape[-2] == 1


def _conv(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule | None:
    weight = node.args[1]
    if not (isinstance(weight, Ref) and weight.name in graph.state):
        return None
    return _window(node, read, graph.state[weight.name].shape[2], 3, dilation=5)


def _max_pool(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule:
    return _window(node, read, both(node.args[1])[0], 2, dilation=4)


def _avg_pool(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule:
    return _window(node, read, both(node.args[1])[0], 2)


def _window(
    node: Node, read: tuple[str, ...], kernel: int, stride: int, dilation: int | None = None
) -> Rule:
    """Of a convolution or pool; `stride`, `dilation`: positions. Padding follows the stride."""
    pools = node.op != "aten.conv2d.default"  # their stride is the kernel's size by default
    step = argument(node, stride, "stride", None) or (kernel if pools else 1)
    spread = 1 if dilation is None else argument(node, dilation, "dilation", 1)
    padding = argument(node, stride + 1, "padding", 0)
    reach = both(spread)[0] * (kernel - 1) + 1
    return Rule(read, (), both(step)[0], both(padding)[0], reach)


def _cat(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule | None:
    return Rule(read) if argument(node, 1, "dim", 0) in (1, -3) else None


def _softmax(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule | None:
    return Rule(read) if argument(node, 1, "dim", None) in (1, -3, 3, -1) else None


def _pad(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule | None:
    """Padding with a constant; amounts are for columns, then rows: left, right, above, below."""
    amounts = argument(node, 1, "pad", [])
    if argument(node, 2, "mode", "constant") != "constant" or len(amounts) not in (2, 4):
        return None
    return Rule(read, above=amounts[2] if len(amounts) == 4 else 0)


def _unshuffle(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule:
    factor = argument(node, 1, "downscale_factor", 1)
    return Rule(read, stride=factor, reach=factor)


def _shuffle(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule:
    return Rule(read, repeat=argument(node, 1, "upscale_factor", 1))


def _upsample(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule | None:
    before, after = graph.values[read[0]].shape[2], graph.values[node.name].shape[2]
    return Rule(read, repeat=after // before) if after % before == 0 else None


def _adaptive(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule | None:
    same = graph.values[read[0]].shape == graph.values[node.name].shape
    return Rule(read) if same else None


_RULES: dict[str, Callable[[Graph, Node, tuple[str, ...]], Rule | None]] = {
    "aten.conv2d.default": _conv,
    "aten.max_pool2d.default": _max_pool,
    "aten.avg_pool2d.default": _avg_pool,
    "aten.cat.default": _cat,
    "aten.pad.default": _pad,
    "aten.pixel_unshuffle.default": _unshuffle,
    "aten.pixel_shuffle.default": _shuffle,
    "aten.upsample_nearest2d.vec": _upsample,
    "aten.adaptive_avg_pool2d.default": _adaptive,
    **dict.fromkeys(_SOFTMAX, _softmax),
}
