"""What a node costs: floating-point operations and bytes. The rule is in its operator's record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from weft.dtypes import DTYPE_BYTES
from weft.graph.network import Node, Ref, State, Value, refs
from weft.graph.operators.table import operator_named


def forward_flops(node: Node, values: Mapping[str, Value], state: Mapping[str, State]) -> float:
    """Floating-point operations of one node for one sample."""
    if operator_named(node.op).recurrent:
        return _recurrent_flops(node, values, state)
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


def _recurrent_flops(node: Node, values: Mapping[str, Value], state: Mapping[str, State]) -> float:
    """A multiply-add counts 2: every step of the input meets every number of the matrices."""
    first = node.args[0]
    steps = prod(values[first.name].shape[:-1]) if isinstance(first, Ref) else 0
    matrices = (state[name].shape for name in refs(node) if name in state)
    return 2.0 * steps * sum(prod(shape) for shape in matrices if len(shape) == 2)


def kept_values(nodes: Sequence[Node]) -> frozenset[str]:
    """The values that stay in memory until the backward pass. A view keeps its original."""
    kept: set[str] = set()
    for node in reversed(nodes):
        record = operator_named(node.op)
        shares = record.view and not _copies(node)
        if record.keeps in ("result", "both") and not record.view:
            kept.add(node.name)
        if record.keeps in ("inputs", "both") or (shares and node.name in kept):
            kept.update(refs(node))
    return frozenset(kept)


def saved_bytes(node: Node, values: Mapping[str, Value], kept: Collection[str]) -> int:
    """Bytes per sample that a node keeps until the backward pass. Views take none."""
    value, record = values.get(node.name), operator_named(node.op)
    if value is None or (record.view and not _copies(node)):
        return 0
    size = value.bytes if node.name in kept else 0
    if node.op.startswith(("aten.max_pool", "aten.adaptive_max_pool")):  # an index of 8 bytes each
        size += 8 * (value.bytes // DTYPE_BYTES[value.dtype])
    elif node.op.startswith("aten.dropout"):  # the mask of dropped values
        size += value.bytes
    elif record.drop_probability is not None:
        size += _attention_bytes(node, values, record.drop_probability)
    return size


def _copies(node: Node) -> bool:
    """Whether a view really is a copy: `contiguous` is captured where dimensions were swapped."""
    return node.op.startswith("aten.contiguous")


def _attention_bytes(node: Node, values: Mapping[str, Value], drop: int) -> int:
    """Attention with dropout keeps its matrix three times: after the softmax, the mask, and after dropout."""
    query, key = (values.get(a.name) if isinstance(a, Ref) else None for a in node.args[:2])
    probability = node.args[drop] if drop < len(node.args) else 0.0
    if query is None or key is None or not isinstance(probability, float) or not probability:
        return 0
    return 3 * (query.bytes // query.shape[-1]) * key.shape[-2]
