"""New batch-norm statistics and logits on one scale, after decoupling and after averaging.

reestimate_norms(net, x)          # without it a decoupled network is no better than guessing
calibrate(net, public_x, public_y)
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from weft.graph.execute import Runner
from weft.graph.network import Node, Segment, refs
from weft.graph.operators.table import operator_named
from weft.graph.split.classes.network import DecoupledNet

MOMENTUM = 6  # position of batch norm's argument


@torch.no_grad()
def reestimate_norms(net: DecoupledNet, x: Tensor, batch: int = 250) -> None:
    """Batch-norm statistics anew from samples: after decoupling the old ones are of other sums."""
    graph, state = net.graph, net.tensors()
    whole = graph.segment(0, len(graph.layers) - 1)
    with torch.random.fork_rng(devices=[]):
        for number, begin in enumerate(range(0, len(x), batch), start=1):
            runner = Runner(
                _estimating(whole, 1 / number), state
            )  # the plain mean over all batches
            runner.forward({graph.inputs[0]: x[begin : begin + batch]}, training=True)


def _estimating(segment: Segment, momentum: float) -> Segment:
    """The network in evaluation, but for the batch norms of its structures: they take statistics."""
    nodes = [_in_evaluation(node, momentum) for node in segment.nodes]
    return msgspec.structs.replace(segment, nodes=nodes)


def _in_evaluation(node: Node, momentum: float) -> Node:
    record, args = operator_named(node.op), list(node.args)
    estimated = record.normalises_batch and any(name.startswith("banks.") for name in refs(node))
    if estimated:
        args[MOMENTUM] = momentum
    elif record.training_flag is not None:
        args[record.training_flag] = False
    if record.drop_probability is not None and record.drop_probability < len(args):
        args[record.drop_probability] = 0.0
    return Node(node.name, node.op, args, node.kwargs)


def calibrate(
    net: DecoupledNet,
    x: Tensor,
    y: Tensor,
    steps: int = 60,
    batch: int = 500,
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
) -> None:
    """A scale and a bias per class, fitted on public samples and folded into the logits' weights.

    Peers compare only their own classes. Only this step puts the logits of different peers on one scale.
    """
    training = net.training
    net.eval()
    with torch.no_grad():
        logits = torch.cat([net(x[i : i + batch]) for i in range(0, len(x), batch)])
    net.train(training)
    target = net.local_labels(y)
    # The scale's exponent, so that it stays positive.
    scale = torch.zeros(logits.shape[1], requires_grad=True)
    shift = torch.zeros(logits.shape[1], requires_grad=True)
    rule = torch.optim.Adam([scale, shift], lr=0.05)
    for _ in range(steps):
        rule.zero_grad()
        loss(logits * scale.exp() + shift, target).backward()  # type: ignore[no-untyped-call]
        rule.step()
    reading = net.blueprint.reading
    weight, bias = reading.head.weight, reading.head_bias
    for column, label in enumerate(net.classes):
        state = net.structure(label)
        factor = scale[column].detach().exp()
        state[weight] *= factor
        state[bias] = state[bias] * factor + shift[column].detach()
        net.put_structure(label, state)
