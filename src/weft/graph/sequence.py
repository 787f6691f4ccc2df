"""A network's layers in the order of execution: one weighted operator each.

    in_sequence(capture(yolov2, example))      # 23 layers, in the order of its configuration

Layers by weighted depth (weft.graph.layers) put parallel branches into one layer, so that few tensors
cross a cut. Slicing feature maps by rows needs the finer list. A cut may then carry a branch's tensor past
several layers. Of two branches the longer one comes first. This list is only for inference: counters of
batches are left out, because only training changes them.
"""

from __future__ import annotations

from msgspec.structs import replace

from weft.graph.layers import group_layers
from weft.graph.network import Graph, Node, refs
from weft.graph.operators.table import operator_named


def in_sequence(graph: Graph) -> Graph:
    """The same network with one layer for every weighted operator."""
    nodes = _ordered(graph)
    place: dict[str, int] = dict.fromkeys(graph.inputs, 0)
    modules: dict[str, str] = {}
    count = 0
    for node in nodes:
        weights = [name for name in refs(node) if name in graph.state]
        if operator_named(node.op).weighted and weights:
            count += 1
            modules[node.name] = weights[0].rpartition(".")[0]
        place[node.name] = count
    layers = group_layers(
        nodes, place, graph.inputs, graph.outputs, dict(graph.values), graph.state, modules
    )
    return replace(graph, layers=layers, loss=None)


def _ordered(graph: Graph) -> list[Node]:
    """The nodes that the output depends on. Each node comes after those it reads, the longest branch
    first."""
    nodes = {node.name: node for layer in graph.layers for node in layer.nodes}
    depth: dict[str, int] = dict.fromkeys(graph.inputs, 0)
    for name, node in nodes.items():  # layers are in order, and so are the nodes of each
        depth[name] = 1 + max((depth.get(read, 0) for read in refs(node)), default=0)
    done: dict[str, Node] = {}
    todo = [(name, False) for name in reversed(graph.outputs)]
    while todo:
        name, ready = todo.pop()
        if name in done or name not in nodes:
            continue
        if ready:
            done[name] = nodes[name]
            continue
        todo.append((name, True))
        # the last one pushed is visited first
        todo += [(r, False) for r in sorted(refs(nodes[name]), key=lambda r: depth.get(r, 0))]
    return list(done.values())
