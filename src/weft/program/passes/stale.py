"""Several minibatches in flight between devices: the same instructions with lags, and stashed weights.

A phone with layers A, an edge server with layers B, `stale = 1`, so two in flight:

    phone  load; F A; send a | recv g [lag 1]; B A [lag 1]; update A [lag 1]
    edge   recv a; F B; loss; B B; send g; update B

At tick n the phone computes forward for minibatch n and backward for n - 1: its gradient is one update old,
and belongs to the weights of that forward pass. The last segment is never stale. Between first and last the
lags fall evenly, as in PipeDream, in proportion to the device changes that are left on the longest way to the
end. A segment has the same lag on all devices and for all samples. So all copies of its weights have the same
age at every minibatch, and the sum of their gradients is that of the minibatch.

If samples come back to the phone (phone, edge, phone: the phone keeps the labels), the phone's last layers
work in the middle:

    phone  load; F A; send a | recv b; F C; loss; B C; send gb; update C [all lag p]
                             | recv ga; B A; update A [all lag s]
    edge   recv a; F B; send b | recv gb; B B; send ga; update B [all lag s - p]
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec

from weft.errors import InputError
from weft.program.instructions import Instruction, Load, Loss, Recv, Send
from weft.program.lower.layout import Layout, Piece


class Lags(NamedTuple):
    """By how many minibatches a segment's forward and backward are behind its device's ticks."""

    forward: int
    backward: int


def stale_lags(layout: Layout) -> list[Lags]:
    """The lags of every segment. Raises InputError if several minibatches cannot be in flight."""
    plan, stale = layout.plan, layout.plan.stale
    if stale < 0:
        raise InputError(f"plan: stale = {stale}; 0 or more is allowed")
    if stale == 0 or plan.mode != "train":
        return [Lags(0, 0)] * len(layout.segments)
    if _there_and_back(layout):
        middle = (stale + 1) // 2
        return [Lags(0, stale), Lags(0, stale - middle), Lags(middle, middle)]
    for piece in layout.pieces:
        _check_no_return(layout, piece)
    changes = [max(_changes(p.devices[g:]) for p in layout.pieces)
               for g in range(len(layout.segments))]  # fmt: skip
    most = max(changes[0], 1)
    return [Lags(0, round(stale * left / most)) for left in changes]


def _there_and_back(layout: Layout) -> bool:
    """Whether one piece goes from the source to another device and back to the source."""
    first, *others = layout.pieces
    home = layout.plan.source
    if layout.plan.owners:
        raise InputError(
            f"plan: stale = {layout.plan.stale} with data on {', '.join(layout.plan.sources)}; "
            "minibatches in flight need all data on one device"
        )
    return (
        not others
        and len(first.devices) == 3
        and first.devices[1] != home
        and first.devices[0] == first.devices[2] == home
    )


def _path(layout: Layout, piece: Piece) -> list[str]:
    """The devices that hold a piece, one after the other, the source first."""
    return [device for device, _ in groupby((layout.plan.source, *piece.devices))]


def _changes(devices: tuple[str, ...]) -> int:
    return sum(a != b for a, b in pairwise(devices))


def _check_no_return(layout: Layout, piece: Piece) -> None:
    path = _path(layout, piece)
    if len(set(path)) < len(path):
        raise InputError(
            f"plan: stale = {layout.plan.stale} and samples that go from device to device as "
            f"{', '.join(path)}; they may come back to a device only as whole minibatches that leave the "
            "source, pass one other device and end at the source; set stale = 0 or give the later "
            "layers to another device"
        )


def with_lags(
    code: Mapping[str, tuple[Instruction, ...]], layout: Layout
) -> dict[str, tuple[Instruction, ...]]:
    """A program of single minibatches with the lags of several in flight.

    Devices never wait in a circle. The input of an instruction is made at the same tick or an earlier one. At
    the same tick, both are in the order of the program of single minibatches.
    """
    lags = stale_lags(layout)
    by_first = {first: lag for (first, _), lag in zip(layout.segments, lags, strict=True)}
    by_end = {last + 1: lag for (_, last), lag in zip(layout.segments, lags, strict=True)}

    def lag(i: Instruction) -> int:
        if isinstance(i, Load):
            return lags[0].forward
        if isinstance(i, Loss):
            return lags[-1].forward
        if isinstance(i, Recv | Send):
            kind, at, receives = i.tensor.kind, i.tensor.at, isinstance(i, Recv)
            # The device that is told stays as far ahead of the update as without lags.
            if kind == "done":
                return i.lag + lags[0].backward
            if kind == "target":
                return (lags[-1] if receives else lags[0]).forward
            # Leaves at the end of a segment, arrives at the beginning of the next.
            if kind == "act":
                return (
                    lags[0].forward if at == 0 else (by_first if receives else by_end)[at].forward
                )
            if kind == "grad":
                return (by_end if receives else by_first)[at].backward
            return by_first[at].backward  # gradients of weights
        first = getattr(i, "layers", (0, 0))[0]
        return by_first[first][type(i).__name__ != "Forward"]

    return {
        device: tuple(msgspec.structs.replace(i, lag=lag(i)) for i in body)
        for device, body in code.items()
    }
