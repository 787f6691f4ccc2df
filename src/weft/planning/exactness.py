"""What a plan computes that plain training, or the whole network, would not.

differs(plan, graph)       # "codec int8, stale weights"; "" where the numbers are the same up to rounding
"""

from __future__ import annotations

from weft.graph.network import Graph, refs
from weft.graph.operators.calls import RENEWED
from weft.graph.operators.table import operator_named
from weft.planning.norms import smallest_piece
from weft.plans import registry
from weft.plans.plan import Plan
from weft.program.lower.layout import layout_of


def differs(plan: Plan, graph: Graph | None = None) -> str:
    """In words why the result is another than that of one process; empty if it is the same."""
    words = [f"codec {plan.codec}"] if plan.codec != "none" else []
    if plan.input_codec != "none":
        words.append(f"samples by codec {plan.input_codec}")
    if plan.gradient_codec != "none":
        words.append(f"gradients by codec {plan.gradient_codec}")
    if plan.stale:
        words.append("stale weights")
    if plan.swarm is not None:
        words.append("messages may be lost")
    if plan.peers is not None:
        words.append("each device trains a network of its own")
    if graph is not None and _norms_of_pieces(plan, graph):
        words.append("batch norms of pieces")
    if graph is not None and _in_pieces(plan) and renewed_buffers(graph):
        words.append("buffers changed by each piece")
    if graph is not None and graph.mixes and samples_apart(plan):
        words.append("samples that meet only in their piece")
    if not words and not registry.behind(plan).exact and plan.mode == "train":
        words.append("another mathematics")
    return ", ".join(words)


def _norms_of_pieces(plan: Plan, graph: Graph) -> bool:
    """Whether a minibatch is normalised piece by piece."""
    if not _in_pieces(plan):
        return False
    nodes = (node for layer in graph.layers for node in layer.nodes)
    return any(operator_named(node.op).normalises_batch for node in nodes)


def samples_apart(plan: Plan) -> bool:
    """Whether some samples of a minibatch, or of a request, never meet on a device."""
    if plan.mode == "train":
        return _in_pieces(plan)
    if plan.swarm is not None or plan.rounds:
        return plan.micro_batches > 1
    return any(piece.samples < plan.batch for piece in layout_of(plan).pieces)


def _in_pieces(plan: Plan) -> bool:
    return plan.mode == "train" and smallest_piece(plan) < plan.batch


def renewed_buffers(graph: Graph) -> list[str]:
    """The buffers that forward changes (a mean of its own, the vectors of a spectral norm). One process
    changes them once for each minibatch, a plan of pieces once for each piece."""
    nodes = (node for layer in graph.layers for node in layer.nodes)
    return [refs(node)[0] for node in nodes if node.op == RENEWED]
