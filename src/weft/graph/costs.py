"""What a node costs: floating-point operations and bytes. The rule is in its operator's record."""

from __future__ import annotations

from collections.abc import Mapping

from weft.graph.network import Node, Ref, State, Value
from weft.graph.operators.table import operator_named


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

    rule = operator_named(node.op).flops
    return rule(values[node.name].shape, shape) if rule is not None else 0.0


def saved_bytes(node: Node, values: Mapping[str, Value]) -> int:
    """Bytes per sample that a node's result occupies until the backward pass; views are free."""
    value = values.get(node.name)
    return value.bytes if value is not None and not operator_named(node.op).view else 0
