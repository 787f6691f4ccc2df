"""How rows of an operator's result depend on rows of the maps that it reads.

A feature map has the dimensions (samples, channels, rows, columns). Convolutions and pools read a window
of rows, activations the row itself. An operator that reads all rows at once (a mean over the map, a softmax
over rows, a change of shape) has no rule here and cannot be cut into rows. Ranges are first..last-1.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from weft.graph.network import Arg, Graph, Infinite, Node, Ref, Value, refs
from weft.graph.operators.calls import alias

Range = tuple[int, int]


class Rule(NamedTuple):
    """How rows of a result depend on rows of the operator's inputs. By default row r depends on row r.

    A window of `reach` rows begins at row `stride * r - above`; each makes `repeat` rows of the result.
    """

    maps: tuple[str, ...]  # inputs that are cut by rows
    whole: tuple[str, ...] = ()  # inputs that are needed whole: constants, values without rows
    stride: int = 1
    above: int = 0  # rows of padding over the map
    reach: int = 1
    repeat: int = 1
    axis: int = 2  # the dimension of the result that counts rows
    resize: int | None = None  # which of the sizes that a view is given is the number of rows
    takes_all: bool = False  # reads all the rows there are: a part of several results
    plain: bool = True  # rows of feature maps, as CoopAI's paper cuts them

    @property
    def row_by_row(self) -> bool:
        """Whether row r depends on row r alone."""
        return self.stride == self.reach == self.repeat == 1 and not self.above

    def span(self, first: int, last: int) -> Range:
        """Rows of the inputs that rows first..last-1 of the result need. They may lie beyond the borders."""
        top, bottom = first // self.repeat, (last - 1) // self.repeat
        return top * self.stride - self.above, bottom * self.stride - self.above + self.reach

    def within(self, rows: Range, height: int, made: int) -> Range:
        """The rows of the result (it has `made` rows) whose windows lie inside the given rows of a map."""
        top = -(-(rows[0] + self.above) // self.stride) * self.repeat if rows[0] > 0 else 0
        bottom = ((rows[1] + self.above - self.reach) // self.stride + 1) * self.repeat
        return top, made if rows[1] >= height else bottom


RowRule = Callable[[Graph, Node, tuple[str, ...]], Rule | None]
# The same for values of any shape: the last argument says which dimension of a value counts rows.
SequenceRule = Callable[[Graph, Node, tuple[str, ...], MutableMapping[str, int]], Rule | None]


@dataclass(frozen=True)
class Rows:
    """How an operator is cut into rows: the rule, and how the call changes in a strip.

    A rule gets the graph, the node and the names of the values that the node reads. It returns None if this
    call of the operator cannot be cut.
    """

    rule: RowRule | None  # of feature maps
    sequence: SequenceRule | None = None  # of values of other shapes
    maps_only: bool = True  # the rule is asked only where every value it reads is a map
    padding: int | None = None  # position of a window's padding: only the true borders keep it
    fill: Arg = 0.0  # the value of that padding
    averages: bool = False  # a window at the border may count fewer places
    pads: bool = False  # the operator itself pads, also rows
    in_strip: Callable[[Node, Range], Node] | None = None  # the call that makes only some rows


def argument(node: Node, position: int, name: str, default: Any) -> Any:
    """An argument by its position, else by its name, else the default."""
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)


def both(arg: Any) -> tuple[int, int]:
    """(for rows, for columns) of an argument that may give one number for both."""
    if isinstance(arg, list):
        return (arg[0], arg[-1])
    return (arg, arg)


def is_map(value: Value | None) -> bool:
    """Whether a value is a feature map: samples, channels, rows, columns."""
    return value is not None and len(value.shape) == 4 and value.batch_dim == 0


def _elementwise(graph: Graph, node: Node, read: Sequence[str]) -> Rule | None:
    """Operands and weights must have the same rows as the result, or one row for all."""
    shapes = [graph.state[name].shape for name in refs(node) if name in graph.state]
    return _per_channel(graph, node, read) if all(map(_without_rows, shapes)) else None


def _per_channel(graph: Graph, node: Node, read: Sequence[str]) -> Rule | None:
    """The same for an operator that has one weight for each channel."""
    value = graph.values[node.name]
    maps, whole = [], []
    for name in read:
        operand = graph.values[name]
        if is_map(operand) and operand.shape[2] == value.shape[2]:
            maps.append(name)
        elif operand.batch_dim == 0 and len(operand.shape) != 4:
            return None  # its samples would be mistaken for channels or rows
        elif _without_rows(operand.shape):
            whole.append(name)
        else:
            return None
    return Rule(tuple(maps), tuple(whole)) if maps else None


def _without_rows(shape: tuple[int, ...]) -> bool:
    return len(shape) < 2 or shape[-2] == 1


def _conv(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule | None:
    weight = node.args[1]
    if not (isinstance(weight, Ref) and weight.name in graph.state):
        return None
    kernel = graph.state[weight.name].shape[2]
    return _window(node, read, kernel, position=3, default_stride=1, dilation=5)


def _max_pool(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule:
    kernel = both(node.args[1])[0]
    return _window(node, read, kernel, position=2, default_stride=kernel, dilation=4)


def _avg_pool(graph: Graph, node: Node, read: tuple[str, ...]) -> Rule:
    kernel = both(node.args[1])[0]
    return _window(node, read, kernel, position=2, default_stride=kernel)


def _window(
    node: Node,
    read: tuple[str, ...],
    kernel: int,
    *,
    position: int,
    default_stride: int,
    dilation: int | None = None,
) -> Rule:
    """The rule of a convolution or pool. `position`: the stride's; padding follows. `dilation`: its
    position."""
    step = argument(node, position, "stride", None) or default_stride
    spread = 1 if dilation is None else argument(node, dilation, "dilation", 1)
    padding = argument(node, position + 1, "padding", 0)
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


def _as_it_is(node: Node, rows: Range) -> Node:
    """The map already has the requested size, so the call becomes an alias."""
    return alias(node.name, node.args[0])


def _with_height(node: Node, rows: Range) -> Node:
    """The call contains the size of the result; in a strip this size is another one."""
    if not isinstance(node.args[1], list):
        return node
    size: Arg = [rows[1] - rows[0], node.args[1][1]]
    return Node(node.name, node.op, [node.args[0], size, *node.args[2:]], node.kwargs)


ELEMENTWISE = Rows(_elementwise, maps_only=False)
PER_CHANNEL = Rows(_per_channel, maps_only=False)
CONVOLUTION = Rows(_conv, padding=4)
MAX_POOL = Rows(_max_pool, padding=3, fill=Infinite("-inf"))
AVERAGE_POOL = Rows(_avg_pool, padding=3, averages=True)
JOINED_CHANNELS = Rows(_cat)
SOFTMAX = Rows(_softmax)
PADDING = Rows(_pad, pads=True)
UNSHUFFLE = Rows(_unshuffle)
SHUFFLE = Rows(_shuffle)
UPSAMPLE = Rows(_upsample, in_strip=_with_height)
SAME_SIZE = Rows(_adaptive, in_strip=_as_it_is)
