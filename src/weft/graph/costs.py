"""What an operator costs, counted as the papers count: 2 FLOPs per multiply-add, one per bias add of
a convolution, nothing for pooling, activations and normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from weft.graph.network import Node, Ref, State, Value
from weft.graph.operators import VIEWS


def forward_flops(node: Node, values: Mapping[str, Value], state: Mapping[str, State]) -> float:
    """Floating-point operations of one node for one sample."""
    if node.name not in values:
        return 0.0

    def shape(position: int) -> tuple[int, ...] | None:
        arg = node.args[position] if position < len(node.args) else None
        if not isinstance(arg, Ref):
            return None
        known = state.get(arg.name) or values.get(arg.name)
        return known.shape if known else None

    out = values[node.name].shape
    kind = node.op.split(".")[1] if node.op.startswith("aten.") else node.op
    if kind in ("conv1d", "conv2d", "conv3d"):
        weight = shape(1) or ()
        bias = 1.0 if shape(2) is not None else 0.0
        return prod(out) * (2.0 * prod(weight[1:]) + bias)
    if kind in ("conv_transpose1d", "conv_transpose2d"):
        weight, given = shape(1) or (), shape(0) or ()
        return 2.0 * prod(given) * prod(weight[1:])
    if kind == "linear":
        return 2.0 * prod(out) * (shape(1) or (0, 0))[-1]
    if kind in ("matmul", "mm", "bmm"):
        return 2.0 * prod(out) * (shape(0) or (0,))[-1]
    if kind in ("addmm", "baddbmm"):
        return 2.0 * prod(out) * (shape(1) or (0,))[-1]
    if kind == "scaled_dot_product_attention":
        query, key = shape(0) or (0, 0), shape(1) or (0, 0)
        return 4.0 * prod(query) * key[-2]
    return 0.0


def saved_bytes(node: Node, values: Mapping[str, Value]) -> int:
    """Bytes per sample that a node's result occupies until the backward pass; views are free."""
    value = values.get(node.name)
    return value.bytes if value is not None and node.op not in VIEWS else 0
