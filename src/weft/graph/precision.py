"""Mixed precision: products in bfloat16, everything else in float32.

    graph = in_bf16(graph)

Every convolution, dense layer and matrix product reads rounded copies of its operands and its result is a
float32 tensor again. Weights stay float32 and are updated in float32; their gradients come back through the
copies. The casts are ordinary nodes of the same layer, so a cut carries what it carried before, and a network
that is split computes the same numbers as one process (docs/decisions/bf16.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from msgspec.structs import replace

from weft.errors import InputError
from weft.graph.network import Arg, DType, Graph, Layer, Node, Ref, refs
from weft.graph.operators.calls import TO_DTYPE
from weft.graph.operators.table import operator_named

Precision = Literal["float32", "bf16"]
_MARK = "@bf16"  # in the names of the casts; no node of an exported graph has such a name


def check_precision(precision: str) -> None:
    """InputError for a word that is no precision."""
    if precision not in get_args(Precision):
        raise InputError(
            f"precision {precision!r} is not allowed; it must be one of {', '.join(get_args(Precision))}"
        )


def check_bf16(nodes: Iterable[Node], who: str) -> None:
    """InputError if nodes of `in_bf16` would run on a processor that has no such instructions: it would
    emulate them, which is no gain."""
    if any(_MARK in node.name for node in nodes) and not has_bf16():
        raise InputError(
            f"{who}: this processor has no bfloat16 instructions (AVX512-BF16, AMX or Arm BF16); leave this "
            "device out, or give --precision float32"
        )


def has_bf16() -> bool:
    """Whether this processor multiplies bfloat16 numbers itself."""
    import torch

    cpu = torch.backends.cpu.get_cpu_capability()
    if "AVX" in cpu:
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def in_bf16(graph: Graph) -> Graph:
    """The same network with its products in bfloat16."""
    return replace(graph, layers=[_layer_in_bf16(graph, layer) for layer in graph.layers])


def _layer_in_bf16(graph: Graph, layer: Layer) -> Layer:
    nodes: list[Node] = []
    for node in layer.nodes:
        if not (operator_named(node.op).product and _single(graph, node)):
            nodes.append(node)
            continue
        # Each product has copies of its own, so that gradients of several readers add up in float32.
        rounded = {name: f"{name}{_MARK}@{node.name}" for name in refs(node)}
        for name, copy in rounded.items():
            nodes.append(Node(copy, TO_DTYPE, [Ref(name), DType("bfloat16")]))
        product = f"{node.name}{_MARK}"
        args: list[Arg] = [Ref(rounded[a.name]) if isinstance(a, Ref) else a for a in node.args]
        nodes.append(replace(node, name=product, args=args))
        nodes.append(Node(node.name, TO_DTYPE, [Ref(product), DType("float32")]))
    return replace(layer, nodes=nodes)


def _single(graph: Graph, node: Node) -> bool:
    """Whether all tensors that a node reads are in float32, and none is in a list."""
    if any(isinstance(arg, list) and any(isinstance(a, Ref) for a in arg) for arg in node.args):
        return False
    known = [graph.state.get(name) or graph.values.get(name) for name in refs(node)]
    return all(tensor is not None and tensor.dtype == "float32" for tensor in known)
