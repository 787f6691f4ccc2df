"""Nodes that Weft itself writes when it splits a network: calls of operators of the table."""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.network import Arg, Atom, DType, Node, Ref

GETITEM = "getitem"
SYNCED_NORM = "synced_norm"  # a batch norm that reads the sums of a whole minibatch: graph/norms.py
CONVOLUTION, DENSE = "aten.conv2d.default", "aten.linear.default"
COUNTER = "buffer.add_"  # counts batches in a buffer
RENEWED = "buffer.copy_"  # a new value of a buffer; with COUNTER the only in-place operators
LITERAL = "literal"  # a small tensor, written as numbers
ALIAS, ADD, TO_DTYPE = "aten.alias.default", "aten.add.Tensor", "aten.to.dtype"


def snapshot(name: str, buffer: str) -> Node:
    """A copy of a buffer before it changes."""
    return Node(name, "aten.clone.default", [Ref(buffer)])


def renewed(name: str, buffer: str, source: str) -> Node:
    """A buffer takes a new value."""
    return Node(name, RENEWED, [Ref(buffer), Ref(source)])


def alias(name: str, source: Arg) -> Node:
    """The same values under another name."""
    return Node(name, ALIAS, [source])


def narrow(name: str, source: str, dim: int, first: int, length: int) -> Node:
    """Places first..first+length-1 of one dimension."""
    return Node(name, "aten.narrow.default", [Ref(source), dim, first, length])


def joined(name: str, parts: Sequence[Ref], dim: int) -> Node:
    """Values one behind the other along a dimension."""
    return Node(name, "aten.cat.default", [list(parts), dim])


def zeroed(name: str, source: str) -> Node:
    """Zeros in the shape of a value."""
    return Node(name, "aten.mul.Tensor", [Ref(source), 0.0])


def padded(name: str, source: str, amounts: list[Atom], fill: Arg) -> Node:
    """A padded map; the amounts are left, right, above, below."""
    return Node(name, "aten.pad.default", [Ref(source), amounts, "constant", fill])


def flattened(name: str, source: str) -> Node:
    """Each sample as one vector."""
    return Node(name, "aten.flatten.using_ints", [Ref(source), 1])


def added(name: str, first: Ref, second: Ref) -> Node:
    """The sum of two values."""
    return Node(name, "aten.add.Tensor", [first, second])


def divided(name: str, first: str, second: str) -> Node:
    """The quotient of two values, place by place."""
    return Node(name, "aten.div.Tensor", [Ref(first), Ref(second)])


def ones_like(name: str, source: str) -> Node:
    """Ones in the shape of a value."""
    return Node(name, "aten.ones_like.default", [Ref(source)])


def dense(name: str, source: str, weight: str, bias: str) -> Node:
    """A fully connected layer."""
    return Node(name, "aten.linear.default", [Ref(source), Ref(weight), Ref(bias)])


def relu(name: str, source: str) -> Node:
    """Negative numbers replaced by zero."""
    return Node(name, "aten.relu.default", [Ref(source)])


def reshaped(name: str, source: str, sizes: list[Atom]) -> Node:
    """The same numbers in another shape."""
    return Node(name, "aten.reshape.default", [Ref(source), sizes])


def picked(name: str, source: str, index: str) -> Node:
    """Some places of dimension 1, in the order that a tensor of numbers says."""
    return Node(name, "aten.index_select.default", [Ref(source), 1, Ref(index)])


def map_mean(name: str, source: Arg) -> Node:
    """The mean of each channel's map, as a map of one row and one column."""
    return Node(name, "aten.mean.dim", [source, [2, 3], True])


def summed_like_mean(name: str, node: Node) -> Node:
    """The sum of the places over which `node` takes a mean."""
    op = "aten.sum.dim_IntList" if node.op == "aten.mean.dim" else "aten.sum.default"
    return Node(name, op, node.args, node.kwargs)


def total(name: str, source: str) -> Node:
    """The sum of all places."""
    return Node(name, "aten.sum.default", [Ref(source)])


def number(name: str, value: Atom) -> Node:
    """One number as a tensor; it may be the number of samples."""
    return Node(name, "aten.full.default", [[], value], {"dtype": DType("float32")})


def multiplied(name: str, first: str, second: str) -> Node:
    """The product of two values, place by place."""
    return Node(name, "aten.mul.Tensor", [Ref(first), Ref(second)])


def unequal(name: str, source: Arg, value: Arg) -> Node:
    """Where a value is not this number."""
    return Node(name, "aten.ne.Scalar", [source, value])


def equal(name: str, source: Arg, value: Arg) -> Node:
    """Where a value is this number."""
    return Node(name, "aten.eq.Scalar", [source, value])


def filled(name: str, source: Arg, mask: str, value: Arg) -> Node:
    """A value with a number in the places of a mask."""
    return Node(name, "aten.masked_fill.Scalar", [source, Ref(mask), value])


def looked_up(name: str, table: Arg, index: str) -> Node:
    """For each number of `index`, that place of a table."""
    return Node(name, "aten.index.Tensor", [table, [Ref(index)]])


def is_whole_sum(node: Node) -> bool:
    """Whether the result is one number whatever the shapes of the operands are."""
    return node.op in ("aten.sum.default", "aten.full.default")
