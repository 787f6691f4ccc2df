"""The result of one process: plain training, or training with weights as old as the plan says.

trained = train_alone(draw, {0: plan}, graph, steps=3)
how = mathematics(plan, module)       # "plain", "stale", "pieces": what the plan must equal
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from weft.graph.network import Graph
from weft.graph.optimizers.optimizer import Optimizer
from weft.loom.draw import Draw
from weft.loom.networks import loss_of, minibatch, module_of
from weft.plans.plan import Plan
from weft.program.lower.layout import layout_of, splits_samples
from weft.program.passes.stale import stale_lags

# exact: equal to one process up to rounding; near: codecs round what crosses links; ends: nothing
# but that it ends with finite numbers (lost packets, peers, dropout, norms over shares of a minibatch)
LONE = 2  # numbers
MANY = 10  # times: two roundings of the same sums differ by so much at most
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
        return "ends" if rescales(plan.optimizer) else "near"
    coded = {plan.codec, plan.input_codec, plan.gradient_codec} != {"none"}
    if coded and training and _has(module, nn.BatchNorm2d):
        return "ends"  # the norm of a few samples amplifies rounding errors
    return "near" if coded else "exact"


def _has(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    return any(isinstance(part, kinds) for part in module.modules())


def rescales(optimizer: str) -> bool:
    """Whether a gradient of any size gives a whole step, as with adam: rounding then shows."""
    return optimizer.split()[0] not in ("sgd", "momentum", "asgd")


def rule_of(draw: Draw) -> Optimizer:
    """The optimizer with a rate at which a few steps do not diverge."""
    rate = 0.001 if rescales(draw.optimizer) else 0.02
    if draw.loss == "cross_entropy_sum":
        rate /= draw.batch
    return Optimizer(draw.optimizer, rate)


def train_alone(
    draw: Draw,
    plans: Mapping[int, Plan],
    graph: Graph,
    steps: int,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """The weights and buffers after plain training. `plans` has the plan that runs from each minibatch on:
    with a new plan the pipeline begins anew, so that no weights are older than that."""
    module = module_of(draw.net).to(dtype).train()
    live, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    optimizer = rule_of(draw).build(list(live.values()))
    history = [{n: p.detach().clone() for n, p in live.items()}]
    ages: dict[str, int] = {}
    for step in range(steps):
        if step in plans:
            begin, ages = step, _ages(plans[step], graph, live)
            pieces = _pieces(plans[step], draw.batch)
        met = {
            n: history[max(begin, step - age)][n].clone().requires_grad_()
            for n, age in ages.items()
        }
        _backward(draw, module, {**met, **buffers}, step, pieces)
        for name, weight in live.items():
            weight.grad = met[name].grad
        optimizer.step()
        history.append({n: p.detach().clone() for n, p in live.items()})
    return {n: t.detach() for n, t in (*live.items(), *buffers.items())}


def _ages(plan: Plan, graph: Graph, live: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """How many updates old each weight is when a minibatch meets it."""
    ages = dict.fromkeys(live, 0)
    if plan.stale:
        layout = layout_of(plan)
        for segment, lag in zip(layout.segments, stale_lags(layout), strict=True):
            names = [n for n in graph.layer_state(*segment) if n in live]
            ages |= dict.fromkeys(names, lag.backward - lag.forward)
    return ages


def _pieces(plan: Plan, batch: int) -> list[int]:
    """The samples of each piece that a minibatch is computed in."""
    if plan.swarm or splits_samples(plan):
        return [batch]
    return [piece.samples for piece in layout_of(plan).pieces]


def _backward(
    draw: Draw, module: nn.Module, state: dict[str, Tensor], step: int, pieces: list[int]
) -> None:
    """The gradients of one minibatch, computed piece by piece, because norms see one piece at a time."""
    x, y = minibatch(draw.net, draw.loss, draw.batch, draw.seed, step)
    dtype = next(t.dtype for t in state.values() if t.is_floating_point())
    x, y = (t.to(dtype) if t.is_floating_point() else t for t in (x, y))
    loss, first = loss_of(draw.loss), 0
    for size in pieces:
        part = slice(first, first + size)
        value = loss(torch.func.functional_call(module, state, (x[part],)), y[part])
        share = 1.0 if draw.loss == "cross_entropy_sum" else size / draw.batch
        (value * share).backward()
        first += size


@torch.no_grad()
def answers_alone(draw: Draw, steps: int) -> list[Tensor]:
    """The answers of the whole network."""
    module = module_of(draw.net).eval()
    inputs = (minibatch(draw.net, draw.loss, draw.batch, draw.seed, n)[0] for n in range(steps))
    return [module(x) for x in inputs]


def trained_differs(
    draw: Draw, trained: dict[str, Tensor], plans: Mapping[int, Plan], graph: Graph, steps: int,
    how: Mathematics,
) -> str:  # fmt: skip
    """In words, what the result of a run has that one process has not; empty where they are equal."""
    rule = rule_of(draw)
    adam = rescales(rule.name)
    wanted = train_alone(draw, plans, graph, steps)
    text = differs(trained, wanted, how, rule.lr, adam)
    if not text or not adam:
        return text
    # A gradient that is 0 in theory (a bias before a norm) is rounding alone, and adam makes whole steps
    # of it. Training with twice the digits shows which weights these are.
    exact = train_alone(draw, plans, graph, steps, torch.float64)
    noise = {name: (wanted[name] - exact[name]).abs() for name in wanted}
    return differs(trained, wanted, how, rule.lr, adam, noise)


def differs(
    found: dict[str, Tensor],
    wanted: dict[str, Tensor],
    how: Mathematics,
    rate: float,
    adam: bool,
    noise: Mapping[str, Tensor] | None = None,
) -> str:
    """What is too far from the reference, in words; empty where nothing is. `noise` is what rounding
    alone does to each number."""
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
        if noise is not None:
            off = (off - MANY * noise[name]).clamp(min=0)
        size = max(1.0, float(expected.abs().max()))
        allowed = (1e-5 if how == "exact" else 0.3) * size
        worst = float(off.max()) if off.numel() else 0.0
        if adam:
            # If a gradient is nearly 0, rounding decides its sign, and adam makes a full step from it.
            # One or two numbers of a short bias may be such; a wrong gradient moves many.
            count = int((off > max(allowed, 1e-5)).sum())
            few = count / max(off.numel(), 1)
            if how == "exact" and few > 0.2 and count > LONE and worst > rate / 10:
                return f"{name} is {worst:.3g} off, {few:.0%} of its numbers by more than {allowed:.3g}"
        elif worst > allowed:
            return f"{name} is {worst:.3g} off; {allowed:.3g} is rounding"
    return ""
