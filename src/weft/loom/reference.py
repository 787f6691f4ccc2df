"""What one process computes: plain training, or training with weights as old as the plan says.

trained = train_alone(draw, plan, graph, starts=(0,))
how = mathematics(plan, module)       # "plain", "stale", "pieces": what the plan must equal
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from weft.graph.network import Graph
from weft.graph.optimizer import Optimizer
from weft.loom.draw import Draw
from weft.loom.networks import loss_of, minibatch, module_of
from weft.plans.plan import Plan
from weft.program.lower.layout import layout_of, splits_samples
from weft.program.passes.stale import stale_lags

# exact: equal to one process up to rounding; near: codecs round what crosses links; ends: nothing
# but that it ends with finite numbers (lost packets, peers, dropout, norms over shares of a minibatch)
WILD = 1e3  # a weight this large: the rate is too high for the network
Mathematics = Literal["exact", "near", "ends"]


def mathematics(plan: Plan, module: nn.Module) -> Mathematics:
    """How the result of a plan relates to that of one process."""
    training = plan.mode == "train"
    if plan.swarm is not None or plan.peers is not None:
        return "ends"
    if training and _has(module, nn.Dropout, nn.MultiheadAttention):
        return "ends"
    if training and splits_samples(plan) and not plan.norms and _has(module, nn.BatchNorm2d):
        return "ends"
    if training and plan.norms:
        # A weight before a norm may have no gradient but rounding, of which adam makes a whole step; and a
        # norm of a few samples makes much of rounding. Tests of their own hold these plans to 1e-5.
        return "ends" if plan.optimizer.startswith("adam") else "near"
    coded = {plan.codec, plan.input_codec, plan.gradient_codec} != {"none"}
    if coded and training and _has(module, nn.BatchNorm2d):
        return "ends"  # the norm of a few samples makes much of a little rounding
    return "near" if coded else "exact"


def _has(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    return any(isinstance(part, kinds) for part in module.modules())


def rule_of(draw: Draw) -> Optimizer:
    """The optimizer with a rate that keeps a few steps tame."""
    rate = 0.001 if draw.optimizer.startswith("adam") else 0.02
    if draw.loss == "cross_entropy_sum":
        rate /= draw.batch
    return Optimizer(draw.optimizer, rate)  # type: ignore[arg-type]


def train_alone(
    draw: Draw, plan: Plan, graph: Graph, steps: int, starts: tuple[int, ...] = (0,)
) -> dict[str, Tensor]:
    """The weights and buffers after plain training. `starts` are the minibatches at which the
    pipeline began anew: nothing is older than the last of them."""
    module = module_of(draw.net).train()
    live, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    rule = rule_of(draw)
    parts = [
        (names, lag, rule.build([live[n] for n in names]))
        for names, lag in _stages(plan, graph, live)
    ]
    history = [{n: p.detach().clone() for n, p in live.items()}]
    pieces = [draw.batch]
    if not (plan.swarm or splits_samples(plan)):
        pieces = [piece.samples for piece in layout_of(plan).pieces]
    for step in range(steps):
        oldest = max(start for start in starts if start <= step)
        met: dict[str, Tensor] = {}
        for names, lag, _ in parts:
            old = history[max(oldest, step - lag)]
            met |= {n: old[n].clone().requires_grad_() for n in names}
        _backward(draw, module, {**met, **buffers}, step, pieces)
        for names, _, optimizer in parts:
            for name in names:
                live[name].grad = met[name].grad
            optimizer.step()
        history.append({n: p.detach().clone() for n, p in live.items()})
    return {n: t.detach() for n, t in (*live.items(), *buffers.items())}


def _stages(plan: Plan, graph: Graph, live: dict[str, nn.Parameter]) -> list[tuple[list[str], int]]:
    """Names of weights, and how many updates old they are when a minibatch meets them."""
    if plan.stale == 0:
        return [(list(live), 0)]
    layout = layout_of(plan)
    return [
        ([n for n in graph.layer_state(*segment) if n in live], lag.backward - lag.forward)
        for segment, lag in zip(layout.segments, stale_lags(layout), strict=True)
    ]


def _backward(
    draw: Draw, module: nn.Module, state: dict[str, Tensor], step: int, pieces: list[int]
) -> None:
    """The gradients of one minibatch, piece by piece: norms see a piece at a time."""
    x, y = minibatch(draw.net, draw.loss, draw.batch, draw.seed, step)
    loss, first = loss_of(draw.loss), 0
    for size in pieces:
        part = slice(first, first + size)
        value = loss(torch.func.functional_call(module, state, (x[part],)), y[part])
        share = 1.0 if draw.loss == "cross_entropy_sum" else size / draw.batch
        (value * share).backward()
        first += size


@torch.no_grad()
def answers_alone(draw: Draw, steps: int) -> list[Tensor]:
    """What the whole network answers."""
    module = module_of(draw.net).eval()
    inputs = (minibatch(draw.net, draw.loss, draw.batch, draw.seed, n)[0] for n in range(steps))
    return [module(x) for x in inputs]


def differs(found: dict[str, Tensor], wanted: dict[str, Tensor], how: Mathematics, rate: float,
            adam: bool) -> str:  # fmt: skip
    """What is too far from the reference, in words; empty where nothing is."""
    if not all(torch.isfinite(t).all() and float(t.abs().max()) < WILD for t in wanted.values()):
        return ""  # it diverges in one process too
    for name, expected in wanted.items():
        if name not in found:
            return f"{name} is missing"
        tensor = found[name]
        if not torch.isfinite(tensor).all():
            return f"{name} is not finite"
        if how == "ends" or not tensor.is_floating_point():
            continue
        off = (tensor.double() - expected.double()).abs()
        size = max(1.0, float(expected.abs().max()))
        allowed = (1e-5 if how == "exact" else 0.3) * size
        worst = float(off.max()) if off.numel() else 0.0
        if adam:
            # Where a gradient is nearly 0, rounding decides its sign, and adam makes a whole step of it.
            few = float((off > max(allowed, 1e-5)).double().mean())
            if how == "exact" and few > 0.2 and worst > rate / 10:
                return f"{name} is {worst:.3g} off, {few:.0%} of its numbers by more than {allowed:.3g}"
        elif worst > allowed:
            return f"{name} is {worst:.3g} off; {allowed:.3g} is rounding"
    return ""
