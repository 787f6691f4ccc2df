"""Checks in one process what a plan computes: weights, answers and the size of every message.

A plan without a network computes nothing. Lost packets and peers have their own tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from weft.graph.capture.module import state_of
from weft.graph.network import Graph
from weft.graph.norms import by_norms
from weft.graph.sequence import in_sequence
from weft.loom.draw import Draw
from weft.loom.networks import graph_of, graph_with_loss, minibatch, module_of
from weft.loom.planned import Planned
from weft.loom.reference import (
    Mathematics,
    answers_alone,
    differs,
    mathematics,
    rule_of,
    trained_differs,
)
from weft.loom.woven import Executed, execute
from weft.program.instructions import Miss

STEPS = 3
MOST_FLOPS = 3e8  # of a minibatch: longer ones are only checked in real runs


def computes_the_same(it: Planned) -> Iterator[str]:
    """The program's weights or answers are those of one process; its messages have planned sizes."""
    if it.draw.net.kind == "profile" or it.plan.peers is not None:
        return
    draw, training = it.draw, it.draw.mode == "train"
    graph = graph_with_loss(draw.net, draw.loss) if training else graph_of(draw.net)
    if graph.forward_flops * draw.batch > MOST_FLOPS:
        return
    module = module_of(draw.net)
    result = _executed(it, graph, module)
    yield from result.odd_bytes[:1]
    yield from result.unequal[:1]
    how = _mathematics(it, module)
    if not training:
        yield from _answers(draw, result, graph, how)
        return
    try:
        text = trained_differs(draw, result.state, {0: it.plan}, graph, STEPS, how)
    except ValueError as error:  # PyTorch's own check of its arguments
        text = f"one process refuses what is planned: {error}"
    if text:
        yield text


def _mathematics(it: Planned, module: nn.Module) -> Mathematics:
    """How the result relates to one process. Without losses a swarm computes the same, unless its plan leaves
    messages out."""
    how = mathematics(it.plan, module)
    swarm = it.plan.swarm
    if swarm is None or (swarm.rescale and it.draw.mode == "infer"):
        return how
    if any(isinstance(i, Miss) for code in it.program.code.values() for i in code):
        return how
    there = {(m.slot, m.source, m.dest) for m in swarm.messages if 0 < m.slot <= swarm.depth}
    back = {
        (m.slot - swarm.depth, m.dest, m.source) for m in swarm.messages if m.slot > swarm.depth
    }
    if it.draw.mode == "train" and there != back:
        return how  # the plan leaves out gradients that are not worth their packets
    return "exact" if {it.plan.codec, it.plan.input_codec} == {"none"} else "near"


def _executed(it: Planned, graph: Graph, module: nn.Module) -> Executed:
    draw = it.draw
    if it.plan.layering == "sequence":
        graph = in_sequence(graph)
    if it.plan.layering == "norms":
        graph = by_norms(graph)
    return execute(
        it.program, graph, state_of(module), lambda step: _data(draw, step), STEPS, rule_of(draw),
        draw.seed,
    )  # fmt: skip


def _data(draw: Draw, step: int) -> tuple[Tensor, Tensor]:
    return minibatch(draw.net, draw.loss, draw.batch, draw.seed, step)


def _answers(draw: Draw, result: Executed, graph: Graph, how: Mathematics) -> Iterator[str]:
    dim = graph.values[graph.output].batch_dim or 0
    for step, wanted in enumerate(answers_alone(draw, STEPS)):
        micros = sorted(micro for at, micro in result.answers if at == step)
        answer = torch.cat([result.answers[step, micro][graph.output] for micro in micros], dim)
        if answer.shape != wanted.shape:
            yield f"the answer has shape {tuple(answer.shape)}, not {tuple(wanted.shape)}"
            return
        text = differs({"answer": answer}, {"answer": wanted}, how, 0.0, adam=False)
        if text:
            yield text
            return
