"""How rows of an operator's result come from rows of what it reads, where values are no feature maps.

A sequence (samples, tokens, numbers) is cut into rows of tokens, a signal (samples, channels, places) into
rows of places, and so is every other shape in which one dimension goes on unchanged: heads of attention,
maps with channels last. `axes` says for each value which dimension that is. An operator that reads a value
of which nothing is known may claim its dimension.

Attention needs the rows of its queries, and all of its keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import replace
from math import prod

from weft.graph.network import Arg, Batch, Graph, Infinite, Node, Ref, refs
from weft.graph.operators import rows
from weft.graph.operators.rows import Rows, Rule, argument

Axes = MutableMapping[str, int]
Move = Callable[[Graph, Node, tuple[int, ...], int], int | None]


def _elementwise(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    """Operands have the rows of the result, or are the same for all rows."""
    out = graph.values[node.name].shape
    known = [name for name in read if name in axes]
    if not known:
        return None
    axis = axes[known[0]] + len(out) - len(graph.values[known[0]].shape)
    maps, whole = [], []
    for name in read:
        shape = graph.values[name].shape
        own = axis - (len(out) - len(shape))
        if own < 0 or shape[own] != out[axis]:
            whole.append(name)
        elif graph.values[name].scales and axes.setdefault(name, own) == own:
            maps.append(name)
        else:
            return None
    for name in refs(node):
        if name in graph.state:
            shape = graph.state[name].shape
            own = axis - (len(out) - len(shape))
            if own >= 0 and shape[own] != 1:
                return None  # weights that differ from row to row
    return _rule(maps, axis, whole)


def _per_channel(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    """Weights are one number for each channel, which are the second dimension."""
    if len(read) != 1 or axes.get(read[0], 1) == 1:
        return None
    return _rule(read, axes[read[0]])


def _dense(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    """Numbers of one token from the numbers of that token."""
    return _along(graph, node, read, axes, last=1)


def _layer_norm(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    normalised = argument(node, 1, "normalized_shape", [])
    return _along(graph, node, read, axes, last=len(normalised))


def _along(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes, last: int) -> Rule | None:
    """The last dimensions are read at once. A value of which nothing is known is cut in front of them."""
    if len(read) != 1 or read[0] not in graph.values:
        return None
    value = graph.values[read[0]]
    free = [d for d in range(len(value.shape) - last) if d != value.batch_dim]
    axis = axes.get(read[0], free[-1] if free else None)
    if axis is None or axis not in free:
        return None
    axes[read[0]] = axis
    return _rule(read, axis)


def _embedding(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    if len(read) != 1 or len(graph.values[read[0]].shape) != 2:
        return None
    return _rule(read, 1) if axes.setdefault(read[0], 1) == 1 else None


def _attention(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    """Rows of the queries; all keys and values."""
    masked = argument(node, 3, "attn_mask", None) is not None
    causal = bool(argument(node, 5, "is_causal", False))
    named = [arg.name for arg in node.args[:3] if isinstance(arg, Ref)]
    if masked or causal or len(named) < 3 or len(set(named)) < 3:
        return None
    return _queried(graph, named[0], named[1:], axes)


def _product(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    """Rows of the first factor; all of the second."""
    named = [arg.name for arg in node.args[:2] if isinstance(arg, Ref)]
    if len(named) < 2 or named[0] == named[1] or any(name not in graph.values for name in named):
        return None
    if len(graph.values[named[0]].shape) != len(graph.values[node.name].shape):
        return None
    return _queried(graph, named[0], named[1:], axes)


def _queried(graph: Graph, first: str, others: list[str], axes: Axes) -> Rule | None:
    axis = len(graph.values[first].shape) - 2
    if axis < 1 or axis == graph.values[first].batch_dim or axes.setdefault(first, axis) != axis:
        return None
    return _rule((first,), axis, others)


def _softmax(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    if read[0] not in axes:
        return None
    axis, shape = axes[read[0]], graph.values[read[0]].shape
    over = argument(node, 1, "dim", None)
    return _rule(read, axis) if over is not None and over % len(shape) != axis else None


def _joined(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    over = argument(node, 1, "dim", 0) % len(graph.values[node.name].shape)
    known = {axes[name] for name in read if name in axes}
    if len(known) != 1 or over in known:
        return None
    (axis,) = known
    for name in read:
        axes.setdefault(name, axis)
    return _rule(read, axis)


def _conv1d(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    weight = node.args[1]
    if not (isinstance(weight, Ref) and weight.name in graph.state):
        return None
    return _window(graph, node, read, axes, graph.state[weight.name].shape[2], 3, 5)


def _max_pool1d(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    return _window(graph, node, read, axes, _one(node.args[1]), 2, 4)


def _avg_pool1d(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    """Where every window is full."""
    rule = _window(graph, node, read, axes, _one(node.args[1]), 2, None)
    return None if rule is None or rule.above or argument(node, 4, "ceil_mode", False) else rule


def _window(
    graph: Graph, node: Node, read: tuple[str, ...], axes: Axes, kernel: int, position: int,
    dilation: int | None,
) -> Rule | None:  # fmt: skip
    """`position`: the stride's; padding follows."""
    if len(read) != 1 or len(graph.values[read[0]].shape) != 3:
        return None
    if graph.values[read[0]].batch_dim != 0 or axes.setdefault(read[0], 2) != 2:
        return None
    pools = dilation != 5
    stride = argument(node, position, "stride", None) or (kernel if pools else 1)
    padding = argument(node, position + 1, "padding", 0)
    if isinstance(padding, str):
        return None
    spread = 1 if dilation is None else _one(argument(node, dilation, "dilation", 1))
    reach = spread * (kernel - 1) + 1
    return Rule(read, (), _one(stride), _one(padding), reach, axis=2, plain=False)


def _transposed(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    """A transposed convolution whose windows lie side by side: every row makes `stride` rows."""
    weight = node.args[1]
    if not (isinstance(weight, Ref) and weight.name in graph.state) or len(read) != 1:
        return None
    kernel = graph.state[weight.name].shape[2]
    stride = _one(argument(node, 3, "stride", 1))
    around = (argument(node, 4, "padding", 0), argument(node, 5, "output_padding", 0))
    spread = argument(node, 7, "dilation", 1)
    if kernel != stride or any(_one(amount) for amount in around) or _one(spread) != 1:
        return None
    axis = axes.setdefault(read[0], 2)
    return Rule(read, repeat=stride, axis=2, plain=False) if axis == 2 else None


def _one(arg: Arg) -> int:
    """Of an argument that may be a list: the number for rows."""
    first = arg[0] if isinstance(arg, list) else arg
    assert isinstance(first, int)
    return first


# --- the same numbers in another shape ----------------------------------------------------------


def _moved(move: Move) -> Callable[[Graph, Node, tuple[str, ...], Axes], Rule | None]:
    """An operator that only moves dimensions; `move` says where the rows go."""

    def rule(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
        if len(read) != 1 or read[0] not in axes or read[0] not in graph.values:
            return None
        axis = move(graph, node, graph.values[read[0]].shape, axes[read[0]])
        return None if axis is None else _rule(read, axis)

    return rule


def _transpose(graph: Graph, node: Node, shape: tuple[int, ...], axis: int) -> int:
    one, two = (_one(arg) % len(shape) for arg in node.args[1:3])
    return two if axis == one else one if axis == two else axis


def _permute(graph: Graph, node: Node, shape: tuple[int, ...], axis: int) -> int:
    order = node.args[1]
    assert isinstance(order, list)
    return [_one(d) % len(shape) for d in order].index(axis)


def _dropped(graph: Graph, node: Node, shape: tuple[int, ...], axis: int) -> int | None:
    """One dimension is gone: of select, unbind and squeeze."""
    gone = _one(argument(node, 1, "dim", 0)) % len(shape)
    return None if gone == axis else axis - (gone < axis)


def _squeezed(graph: Graph, node: Node, shape: tuple[int, ...], axis: int) -> int | None:
    gone = _one(node.args[1]) % len(shape)
    return axis if shape[gone] != 1 else _dropped(graph, node, shape, axis)


def _unsqueezed(graph: Graph, node: Node, shape: tuple[int, ...], axis: int) -> int:
    return axis + (_one(node.args[1]) % (len(shape) + 1) <= axis)


def _unflattened(graph: Graph, node: Node, shape: tuple[int, ...], axis: int) -> int | None:
    where, sizes = _one(node.args[1]) % len(shape), node.args[2]
    assert isinstance(sizes, list)
    return None if where == axis else axis + (len(sizes) - 1) * (where < axis)


def _beside(graph: Graph, node: Node, shape: tuple[int, ...], axis: int) -> int | None:
    """A part of another dimension: of slice and narrow."""
    return None if _one(argument(node, 1, "dim", 0)) % len(shape) == axis else axis


def _divided(graph: Graph, node: Node, shape: tuple[int, ...], axis: int) -> int | None:
    """Parts of another dimension: of chunk and split, which have the dimension third."""
    return None if _one(argument(node, 2, "dim", 0)) % len(shape) == axis else axis


def _reshaped(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    """A dimension of the same size, with as many numbers in front of it, is the same dimension."""
    if len(read) != 1 or read[0] not in axes or read[0] not in graph.values:
        return None
    shape, axis = graph.values[read[0]].shape, axes[read[0]]
    out = graph.values[node.name].shape
    same = [
        d for d in range(len(out)) if out[d] == shape[axis] and prod(out[:d]) == prod(shape[:axis])
    ]
    if not same or shape[axis] == 1 or not _same_side(graph, node, read[0], axis, same[0]):
        return None
    sizes = node.args[1] if len(node.args) > 1 else None
    if not isinstance(sizes, list):
        return _rule(read, same[0])
    if len(sizes) != len(out) or not _counts(sizes[same[0]], shape[axis]):
        return None
    return Rule(read, axis=same[0], resize=same[0], plain=False)


def _same_side(graph: Graph, node: Node, read: str, axis: int, moved: int) -> bool:
    """Whether the samples lie on the same side of the rows before and after: else a view mixes them."""
    before, after = graph.values[read].batch_dim, graph.values[node.name].batch_dim
    return before is None or after is None or (before < axis) == (after < moved)


def _counts(size: Arg, rows: int) -> bool:
    """Whether a size that a view is given is the number of rows, perhaps times the samples."""
    if isinstance(size, Batch):
        return size.times == rows and not size.plus
    return size in (rows, -1)


def _item(graph: Graph, node: Node, read: tuple[str, ...], axes: Axes) -> Rule | None:
    """One of several results; all of its rows, as a tuple cannot be cut."""
    if len(read) != 1 or read[0] not in axes:
        return None
    return Rule(read, axis=axes[read[0]], takes_all=True, plain=False)


def _rule(
    maps: tuple[str, ...] | list[str], axis: int, whole: tuple[str, ...] | list[str] = ()
) -> Rule | None:
    return Rule(tuple(maps), tuple(whole), axis=axis, plain=False) if maps else None


TOKENS = Rows(None, sequence=_dense)
LAYER_NORM = Rows(None, sequence=_layer_norm)
EMBEDDING = Rows(None, sequence=_embedding)
ATTENTION = Rows(None, sequence=_attention)
PRODUCT = Rows(None, sequence=_product)
CONVOLUTION1D = Rows(None, sequence=_conv1d, padding=4)
MAX_POOL1D = Rows(None, sequence=_max_pool1d, padding=3, fill=Infinite("-inf"))
AVERAGE_POOL1D = Rows(None, sequence=_avg_pool1d, padding=3)
TRANSPOSED = Rows(None, sequence=_transposed)
TRANSPOSE = Rows(None, sequence=_moved(_transpose))
PERMUTE = Rows(None, sequence=_moved(_permute))
SELECT = Rows(None, sequence=_moved(_dropped))
SQUEEZE = Rows(None, sequence=_moved(_squeezed))
UNSQUEEZE = Rows(None, sequence=_moved(_unsqueezed))
UNFLATTEN = Rows(None, sequence=_moved(_unflattened))
SLICE = Rows(None, sequence=_moved(_beside))
CHUNK = Rows(None, sequence=_moved(_divided))
RESHAPE = Rows(None, sequence=_reshaped)
ITEM = Rows(None, sequence=_item)
FLATTEN = RESHAPE
ELEMENTWISE = replace(rows.ELEMENTWISE, sequence=_elementwise)
PER_CHANNEL = replace(rows.PER_CHANNEL, sequence=_per_channel)
SOFTMAX = replace(rows.SOFTMAX, sequence=_softmax)
JOINED_CHANNELS = replace(rows.JOINED_CHANNELS, sequence=_joined)
