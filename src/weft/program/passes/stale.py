"""Several minibatches in flight between stages: the same instructions with lags, and weights that wait.

A phone with layers A, an edge server with layers B, `stale = 1`, so two in flight:

    phone  load; F A; send a | recv g [lag 1]; B A [lag 1]; update A [lag 1]
    edge   recv a; F B; loss; B B; send g; update B

At tick n the phone computes forward for minibatch n and backward for n - 1: its gradient is one update
old, and belongs to the weights as they were at that forward. The last stage is never stale. Between
first and last the lags fall evenly, as PipeDream's do. In a plan there and back (phone, edge, phone: the
phone keeps the labels) the phone's last layers work in the middle of the way:

    phone  load; F A; send a | recv b; F C; loss; B C; send gb; update C [all lag p]
                             | recv ga; B A; update A [all lag s]
    edge   recv a; F B; send b | recv gb; B B; send ga; update B [all lag s - p]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from weft.errors import InputError
from weft.plans.plan import Plan
from weft.program.instructions import Instruction, Load, Loss, Recv, Send


class Stage(NamedTuple):
    """A run of layers on one device; a plan numbers its stages in the order of the layers."""

    device: str
    first: int
    last: int


class Lags(NamedTuple):
    """How many minibatches a stage's forward and its backward are behind its device's ticks."""

    forward: int
    backward: int


def stale_lags(plan: Plan, stages: Sequence[Stage]) -> list[Lags]:
    """The lags of every stage; InputError where several minibatches cannot be in flight."""
    stale, count = plan.stale, len(stages)
    if stale < 0:
        raise InputError(f"plan: stale = {stale}; 0 or more is allowed")
    if stale == 0 or count == 1 or plan.mode != "train":
        return [Lags(0, 0)] * count
    devices = [stage.device for stage in stages]
    if plan.micro_batches > 1 or devices[0] != plan.source:
        raise InputError(
            f"plan: stale = {stale} with micro_batches = {plan.micro_batches} and layer 0 on "
            f"{devices[0]}; whole minibatches and the first layers on {plan.source} are allowed"
        )
    if len(set(devices)) == count:
        last = count - 1
        return [Lags(0, round(stale * (last - s) / last)) for s in range(count)]
    if count == 3 and devices[0] == devices[2]:
        middle = (stale + 1) // 2
        return [Lags(0, stale), Lags(0, stale - middle), Lags(middle, middle)]
    raise InputError(
        f"plan: stale = {stale} with stages on {', '.join(devices)}; a device may come twice only "
        "as the first and the last of three"
    )


def versions(plan: Plan, stages: Sequence[Stage], s: int) -> int:
    """How many versions of a stage's weights are in use at once, and as many activations."""
    forward, backward = stale_lags(plan, stages)[s]
    return backward - forward + 1


def with_lags(
    code: Mapping[str, tuple[Instruction, ...]], stages: Sequence[Stage], lags: Sequence[Lags]
) -> dict[str, tuple[Instruction, ...]]:
    """A program of single minibatches with the lags of several in flight."""
    by_first = {stage.first: lag for stage, lag in zip(stages, lags, strict=True)}
    by_end = {stage.last + 1: lag for stage, lag in zip(stages, lags, strict=True)}

    def lag(i: Instruction) -> int:
        if isinstance(i, Load):
            return lags[0].forward
        if isinstance(i, Loss):
            return lags[-1].forward
        if isinstance(i, Recv | Send):
            kind, at, receives = i.tensor.kind, i.tensor.at, isinstance(i, Recv)
            if kind == "target":
                return (lags[-1] if receives else lags[0]).forward
            if kind == "act":  # leaves at the end of a stage, arrives at the beginning of the next
                return (by_first if receives else by_end)[at].forward
            return (by_end if receives else by_first)[at].backward
        first = getattr(i, "layers", (0, 0))[0]
        return by_first[first][type(i).__name__ != "Forward"]

    return {
        device: tuple(msgspec.structs.replace(i, lag=lag(i)) for i in body)
        for device, body in code.items()
    }
