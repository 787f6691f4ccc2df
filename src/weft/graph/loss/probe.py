"""Measures how a loss adds up over samples: as a mean, as a sum, or only over the whole minibatch.

    adds_up(loss, (1, 10), targets, ignored={0})    # ("mean", "samples") for a cross entropy

A minibatch may be cut (micro-batches, shares of samples) only if its loss and gradient are the weighted sum
of those of its pieces. This is not so with class weights, masks, roots and maxima. The probe draws outputs
and targets at random, cuts them into unequal pieces and compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from weft.dtypes import torch_dtype
from weft.graph.network import Value

Function = Callable[[Tensor, Tensor], Tensor]
LossRun = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]  # of all outputs and all targets

PIECES = (2, 3, 4)  # samples; in a piece of one sample, squeeze() would remove the batch dimension
SAMPLES = sum(PIECES)
TOLERANCE = 1e-4  # relative
MOST_NUMBERS = 1 << 20  # in the outputs of one draw: this takes some milliseconds


class AddsUp(NamedTuple):
    """How the loss of a minibatch is computed from the losses of its pieces."""

    reduction: Literal["mean", "sum"]
    over: Literal["samples", "batch"]


class Packed(NamedTuple):
    """A loss as a function of one output and one target."""

    loss: Function
    shape: tuple[int, ...]  # of the output for one sample
    target: Tensor


def packed(loss: LossRun, outputs: Sequence[Value], targets: Sequence[Tensor]) -> Packed:
    """A loss of several outputs and targets as one of one output and one target.

    The one output is a row of all numbers of a sample's outputs. The one target is the number of the sample
    whose targets the loss gets.
    """
    if len(outputs) == 1 and len(targets) == 1:
        return Packed(lambda output, target: loss([output], [target]), outputs[0].shape, targets[0])
    sizes = [math.prod(value.shape[1:]) for value in outputs]

    def of_rows(rows: Tensor) -> list[Tensor]:
        parts = torch.split(rows, sizes, dim=1)
        return [
            part.reshape(len(rows), *value.shape[1:]).to(torch_dtype(value.dtype))
            for part, value in zip(parts, outputs, strict=True)
        ]

    shape = (1, sum(sizes))
    if len(targets) == 1:
        return Packed(lambda rows, target: loss(of_rows(rows), [target]), shape, targets[0])

    def of_numbers(rows: Tensor, numbers: Tensor) -> Tensor:
        return loss(of_rows(rows), [target[numbers] for target in targets])

    return Packed(of_numbers, shape, torch.arange(len(targets[0])))


def adds_up(
    loss: Function, output_shape: tuple[int, ...], target: Tensor, ignored: Iterable[int] = ()
) -> AddsUp:
    """How a loss adds up. `target` are targets from the data, `ignored` are class numbers that may be
    masks."""
    possible = {"mean", "sum"}
    measured = False
    for output, labels, sizes in _draws(loss, output_shape, target, ignored):
        whole = _measure(loss, output, labels)
        if whole is None:
            continue  # the loss is not defined there
        measured = True
        pieces = [
            _measure(loss, o, t)
            for o, t in zip(torch.split(output, sizes), torch.split(labels, sizes), strict=True)
        ]
        if any(piece is None for piece in pieces):
            return AddsUp("mean", "batch")
        known = [piece for piece in pieces if piece is not None]
        possible = {how for how in possible if _equal(whole, known, sizes, how)}
        if not possible:
            break
    if not measured or not possible:
        return AddsUp("mean", "batch")
    return AddsUp("mean" if "mean" in possible else "sum", "samples")


def cuts_up(
    loss: Function,
    piece: Function,
    output_shape: tuple[int, ...],
    target: Tensor,
    ignored: Iterable[int] = (),
) -> bool:
    """Whether the losses of pieces, each computed by `piece`, add up to `loss`, and their gradients too.

    `loss` is called first, so that it can keep the totals of the minibatch for `piece`.
    """
    measured = False
    for output, labels, sizes in _draws(loss, output_shape, target, ignored):
        whole = _measure(loss, output, labels)
        if whole is None:
            continue
        measured = True
        pieces = [
            _measure(piece, o, t)
            for o, t in zip(torch.split(output, sizes), torch.split(labels, sizes), strict=True)
        ]
        known = [p for p in pieces if p is not None]
        if len(known) < len(pieces) or not _equal(whole, known, sizes, "sum"):
            return False
    return measured


class _Measured(NamedTuple):
    loss: Tensor
    gradient: Tensor


def _measure(loss: Function, output: Tensor, target: Tensor) -> _Measured | None:
    """Loss and gradient; None if the loss is not defined for this output and target."""
    leaf = output.detach().requires_grad_()
    try:
        with torch.enable_grad():
            value = loss(leaf, target)
        slopes = torch.autograd.grad(value, leaf, allow_unused=True) if value.requires_grad else ()
    except Exception:  # operators raise many kinds of errors for targets that they do not accept
        return None
    known = bool(slopes) and slopes[0] is not None
    gradient = slopes[0] if known else torch.zeros_like(output)
    value = value.detach()
    if not (value.isfinite() and gradient.sum().isfinite()):
        return None
    return _Measured(value, gradient)


def _equal(whole: _Measured, pieces: list[_Measured], sizes: list[int], how: str) -> bool:
    total = sum(sizes)
    shares = [size / total if how == "mean" else 1.0 for size in sizes]
    added = sum(share * piece.loss.item() for share, piece in zip(shares, pieces, strict=True))
    if not math.isclose(added, whole.loss.item(), rel_tol=TOLERANCE, abs_tol=1e-7):
        return False
    largest = whole.gradient.abs().max().item()
    for share, piece, expected in zip(
        shares, pieces, torch.split(whole.gradient, sizes), strict=True
    ):
        allowed = TOLERANCE * expected.abs().max().item() + 1e-6 * largest
        if (share * piece.gradient - expected).abs().max().item() > allowed:
            return False
    return True


# --- what is drawn ----------------------------------------------------------------------------------


def _draws(
    loss: Function, shape: tuple[int, ...], target: Tensor, ignored: Iterable[int]
) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    """Outputs, targets and sizes of pieces, of several kinds that may change how a loss adds up."""
    generator = torch.Generator().manual_seed(0)

    def outputs(samples: int, between_0_and_1: bool = True) -> Tensor:
        # Between 0 and 1 every loss of PyTorch is defined.
        draw = torch.rand if between_0_and_1 else torch.randn
        return draw(samples, *shape[1:], generator=generator)

    rows = torch.randint(len(target), (SAMPLES,), generator=generator)
    yield outputs(SAMPLES), target[rows], list(PIECES)
    drawn = (
        _numbers(target, generator)
        if target.is_floating_point()
        else _classes(loss, outputs, target, ignored, generator)
    )
    for number, labels in enumerate(drawn):
        if len(labels) == SAMPLES:
            turn = number % len(PIECES)
            yield outputs(SAMPLES), labels, [*PIECES[turn:], *PIECES[:turn]]
        else:
            size = max(2, len(labels) // 16)
            yield outputs(len(labels)), labels, [len(p) for p in torch.split(labels, size)]
    yield outputs(SAMPLES, between_0_and_1=False), target[rows.flip(0)], list(reversed(PIECES))


def _numbers(target: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """Targets that are numbers: random ones, then with values that are often used as masks."""
    shape = (SAMPLES, *target.shape[1:])

    def draw() -> Tensor:
        return torch.rand(shape, generator=generator).to(target.dtype)

    yield draw()
    known = target[target.isfinite()]
    ends = [known.min().item(), known.max().item()] if known.numel() else []
    for mask in dict.fromkeys([0.0, -1.0, *ends, math.nan]):
        for masked in _masks(shape, generator):
            yield draw().masked_fill(masked, mask)


def _classes(
    loss: Function,
    outputs: Callable[[int], Tensor],
    target: Tensor,
    ignored: Iterable[int],
    generator: torch.Generator,
) -> Iterator[Tensor]:
    """Targets that are class numbers: mixed, every class once, and with numbers that may be masks."""
    some = outputs(SAMPLES)
    shape, kind = (SAMPLES, *target.shape[1:]), target.dtype
    count = _class_count(loss, some, shape, kind)
    if count is None:
        return

    def draw(most: int) -> Tensor:
        return torch.randint(most, shape, generator=generator).to(kind)

    yield draw(count)
    # Few classes, so that a class with another weight than the others is certain to be drawn.
    few = torch.tensor([0, count - 1, count // 2]).to(kind)
    yield few[draw(3).long()]
    each = math.prod(target.shape[1:])
    samples = min(-(-count // each), MOST_NUMBERS // max(some[0].numel(), 1))
    if samples > SAMPLES:
        order = torch.randperm(count, generator=generator).to(kind)
        yield order.repeat(-(-samples * each // count))[: samples * each].view(samples, *shape[1:])
    outside = torch.unique(target[(target < 0) | (target >= count)])[:4].tolist()
    for mask in dict.fromkeys([*ignored, -1, *outside]):
        for masked in _masks(shape, generator) if kind is not torch.bool else ():
            yield draw(count).masked_fill(masked, int(mask))


def _masks(shape: tuple[int, ...], generator: torch.Generator) -> Iterator[Tensor]:
    """Places where a target is masked: the whole first sample; then some entries, if a sample has several."""
    masked = torch.zeros(shape, dtype=torch.bool)
    masked[0] = True
    yield masked
    if math.prod(shape[1:]) > 1:
        yield torch.rand(shape, generator=generator) < 0.4


def _class_count(
    loss: Function, output: Tensor, shape: tuple[int, ...], kind: torch.dtype
) -> int | None:
    """How many classes the loss accepts: the size of the output's second or last dimension, or two."""
    sizes = sorted({*output.shape[1:2], *output.shape[-1:], 2}, reverse=True)
    numbers = math.prod(shape)
    for count in sizes:
        spread = torch.linspace(0, count - 1, numbers).round().flip(0)
        if _measure(loss, output, spread.view(shape).to(kind)) is not None:
            return int(count)
    return None
