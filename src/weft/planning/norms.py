"""Batch norms in training: every piece of a minibatch must give each channel at least two values.

    enough_for_norms(plan, graph)     # whether its smallest piece has enough values
    check_norms(plan, graph)          # InputError that names the layer, if not
    check_asked(task)                 # the same, before a strategy is asked

One value has no variance, and PyTorch refuses to train with it. Pieces (micro-batches, shares of samples) are
normalised one by one. So a piece may have too few values although the whole minibatch has enough.
"""

from __future__ import annotations

from math import prod

from weft.errors import InputError
from weft.graph.network import Graph
from weft.graph.norms import normalises
from weft.plans.plan import Plan
from weft.plans.task import Task
from weft.program.lower.layout import layout_of


def enough_for_norms(plan: Plan, graph: Graph | None) -> bool:
    """Whether every piece of the plan gives each channel of a batch norm two values or more."""
    return graph is None or smallest_piece(plan) > 1 or _narrow_layer(graph) is None


def has_narrow_norm(graph: Graph | None) -> bool:
    """Whether some batch norm has one value per channel and sample, so that pieces of one sample are
    refused."""
    return graph is not None and _narrow_layer(graph) is not None


def check_norms(plan: Plan, graph: Graph | None) -> None:
    """Raises InputError, with the layer's name, if a piece has too few values for a batch norm."""
    if graph is not None and not enough_for_norms(plan, graph):
        raise _too_few(graph, f"batch {plan.batch}, micro_batches = {plan.micro_batches}")


def check_asked(task: Task) -> None:
    """Raises InputError if the batch, or the pieces that the user asks for, are too small for any plan."""
    pieces = task.options.get("micro_batches", "1")
    if task.graph is None or task.mode == "infer" or not pieces.isdigit() or int(pieces) < 1:
        return  # the strategy refuses an option that is no number
    if task.batch // int(pieces) < 2 and _narrow_layer(task.graph) is not None:
        raise _too_few(task.graph, f"batch {task.batch}, micro_batches = {pieces}")


def _too_few(graph: Graph, asked: str) -> InputError:
    return InputError(
        f"batch norm in layer {_narrow_layer(graph)} of {graph.name} has one value per channel in each "
        f"sample, and some pieces would be single samples ({asked}): one value has no variance. "
        "Take a larger batch, or fewer micro-batches"
    )


def smallest_piece(plan: Plan) -> int:
    """The smallest number of samples that a device computes at once."""
    if plan.mode == "infer" or plan.swarm is not None:
        return plan.batch + 1  # running statistics are used, or no norm is allowed
    if plan.peers is not None or plan.norms:
        return plan.batch  # statistics are those of the whole minibatch
    return min(piece.samples for piece in layout_of(plan).pieces)


def _narrow_layer(graph: Graph) -> str | None:
    """The first layer with a batch norm of one value per channel and sample."""
    for layer in graph.layers:
        for node in layer.nodes:
            if normalises(node) and prod(graph.values[node.name].shape[2:]) == 1:
                return layer.name
    return None
