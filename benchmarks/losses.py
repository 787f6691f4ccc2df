"""44 losses on minibatches that are cut into pieces: exact, or refused with the reason.

    python benchmarks/losses.py

Each loss is captured from one minibatch of 9 samples, as if later ones were not known. If Weft says that it
may be cut, new outputs and targets are cut into pieces of 2, 3 and 4 samples. Loss and gradient must equal
those of one process to 1e-5. The table says how the pieces add up: as a mean, as a sum, or with totals (sums
over all targets, which travel with the targets).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weft.errors import InputError
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.execute import Runner, TargetTotals

SIZES, CLOSE = (2, 3, 4), 1e-5
SAMPLES, CLASSES, LENGTH = sum(SIZES), 4, 5
WEIGHTS = torch.tensor([1.0, 0.5, 3.0, 0.1])
Targets = Callable[[torch.Generator], Tensor]


class Case(NamedTuple):
    """A loss, the targets that it reads, and the shape of a sample's output."""

    loss: Any
    targets: Targets
    shape: tuple[int, ...] = (CLASSES,)


def classes(draw: torch.Generator) -> Tensor:
    return torch.randint(CLASSES, (SAMPLES,), generator=draw)


def numbers(draw: torch.Generator) -> Tensor:
    return torch.rand(SAMPLES, CLASSES, generator=draw)


def chances(draw: torch.Generator) -> Tensor:
    return numbers(draw).softmax(1)


def bits(draw: torch.Generator) -> Tensor:
    return numbers(draw).round()


def signs(draw: torch.Generator) -> Tensor:
    return bits(draw) * 2 - 1


def sparse(draw: torch.Generator) -> Tensor:
    drawn = numbers(draw)
    return drawn * (drawn > 0.5)


def words(draw: torch.Generator) -> Tensor:
    """Sequences of unequal lengths, padded with -100."""
    lengths = torch.randint(2, LENGTH + 1, (SAMPLES, 1), generator=draw)
    drawn = torch.randint(CLASSES, (SAMPLES, LENGTH), generator=draw)
    return drawn.masked_fill(torch.arange(LENGTH) >= lengths, -100)


def next_word(y: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(y[:, :-1].flatten(0, 1), t[:, 1:].flatten())


def focal(y: Tensor, t: Tensor) -> Tensor:
    chance = y.softmax(1).gather(1, t[:, None])
    return ((1 - chance) ** 2 * -chance.log()).mean()


def by_frequency(y: Tensor, t: Tensor) -> Tensor:
    counts = F.one_hot(t, CLASSES).sum(0).clamp(min=1)
    return (F.cross_entropy(y, t, reduction="none") * (len(t) / counts)[t]).mean()


def dice(y: Tensor, t: Tensor) -> Tensor:
    return 1 - 2 * (y * t).sum() / (y.sum() + t.sum())


def each_dice(y: Tensor, t: Tensor) -> Tensor:
    return 1 - (2 * (y * t).sum(1) / (y.sum(1) + t.sum(1) + 1)).mean()


def masked(each: Tensor, mask: Tensor) -> Tensor:
    return (each * mask).sum() / mask.sum()


def from_numbers(y: Tensor, t: Tensor) -> Tensor:
    return F.gaussian_nll_loss(y[:, :2], t[:, :2], y[:, 2:].square() + 0.1)


MAPS, ROWS = (CLASSES, LENGTH), (LENGTH, CLASSES)
CASES: dict[str, Case] = {
    "cross-entropy": Case(nn.CrossEntropyLoss(), classes),
    "cross-entropy, sum": Case(nn.CrossEntropyLoss(reduction="sum"), classes),
    "cross-entropy, label smoothing": Case(nn.CrossEntropyLoss(label_smoothing=0.1), classes),
    "cross-entropy, class weights": Case(nn.CrossEntropyLoss(weight=WEIGHTS), classes),
    "cross-entropy, weights, sum": Case(nn.CrossEntropyLoss(WEIGHTS, reduction="sum"), classes),
    "cross-entropy, ignore_index": Case(nn.CrossEntropyLoss(ignore_index=1), classes),
    "cross-entropy, all of them": Case(
        nn.CrossEntropyLoss(WEIGHTS, ignore_index=2, label_smoothing=0.2), classes
    ),
    "cross-entropy, soft targets": Case(nn.CrossEntropyLoss(), chances),
    "cross-entropy of maps": Case(nn.CrossEntropyLoss(), words, MAPS),
    "cross-entropy of maps, weights": Case(nn.CrossEntropyLoss(WEIGHTS), words, MAPS),
    "next word, padding": Case(next_word, words, ROWS),
    "each word by hand": Case(
        lambda y, t: F.cross_entropy(y.transpose(1, 2), t, reduction="none").sum() / (t != -100).sum(),
        words, ROWS,
    ),
    "NLL": Case(lambda y, t: F.nll_loss(y.log_softmax(1), t), classes),
    "NLL, class weights": Case(lambda y, t: F.nll_loss(y.log_softmax(1), t, WEIGHTS), classes),
    "weights by the classes present": Case(by_frequency, classes),
    "focal": Case(focal, classes),
    "multi-margin": Case(nn.MultiMarginLoss(), classes),
    "MSE": Case(nn.MSELoss(), numbers),
    "MSE, sum": Case(nn.MSELoss(reduction="sum"), numbers),
    "MSE over len(t)": Case(lambda y, t: ((y - t) ** 2).sum() / len(t), numbers),
    "L1": Case(nn.L1Loss(), numbers),
    "smooth L1": Case(nn.SmoothL1Loss(), numbers),
    "Huber": Case(nn.HuberLoss(), numbers),
    "Poisson NLL": Case(nn.PoissonNLLLoss(), numbers),
    "Gaussian NLL": Case(from_numbers, numbers),
    "BCE with logits": Case(nn.BCEWithLogitsLoss(), bits),
    "BCE with pos_weight": Case(nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), bits),
    "soft margin": Case(nn.SoftMarginLoss(), signs),
    "KL, batchmean": Case(
        lambda y, t: F.kl_div(y.log_softmax(1), t, reduction="batchmean"), chances
    ),
    "dice of each sample": Case(each_dice, bits),
    "masked L1": Case(lambda y, t: masked((y - t).abs(), t > 0), sparse),
    "masked BCE": Case(
        lambda y, t: masked(F.binary_cross_entropy_with_logits(y, t, reduction="none"), t > 0), sparse
    ),
    "one less a masked mean": Case(lambda y, t: 1 - masked(y * t, t > 0), sparse),
    "targets without their mean": Case(lambda y, t: F.mse_loss(y, t - t.mean(0)), numbers),
    "MSE and a mean of outputs": Case(
        lambda y, t: F.mse_loss(y, t) + 0.1 * y.abs().mean(), numbers
    ),
    "MSE and a sum of outputs": Case(lambda y, t: F.mse_loss(y, t) + 0.1 * y.abs().sum(), numbers),
    "ignore_index and a regulariser": Case(
        lambda y, t: F.cross_entropy(y, t, ignore_index=1) + 0.1 * y.square().mean(), classes
    ),
    "RMSE": Case(lambda y, t: F.mse_loss(y, t).sqrt(), numbers),
    "dice of the minibatch": Case(dice, bits),
    "square of the mean output": Case(
        lambda y, t: F.mse_loss(y, t) + y.mean(0).square().sum(), numbers
    ),
    "largest error": Case(lambda y, t: (y - t).abs().amax(), numbers),
    "the two hardest samples": Case(
        lambda y, t: F.cross_entropy(y, t, reduction="none").topk(2)[0].mean(), classes
    ),
    "softmax over samples": Case(lambda y, t: -(y.log_softmax(0) * t).mean(), chances),
    "contrast of samples": Case(
        lambda y, t: F.cross_entropy(y @ y.T, torch.arange(len(y))), numbers
    ),
}  # fmt: skip


def verdict(case: Case) -> str:
    """How the pieces of a loss add up, or why they do not. Raises AssertionError if they are not exact."""
    torch.manual_seed(0)
    width = math.prod(case.shape)
    network = nn.Sequential(nn.Linear(3, width), nn.Unflatten(1, case.shape))
    draw = torch.Generator().manual_seed(5)
    graph = capture(network, torch.zeros(2, 3))
    try:
        graph = capture_loss(graph, case.loss, case.targets(draw), complete=False)
    except InputError as error:
        return f"refused: {error}"
    loss = graph.loss
    assert loss is not None
    if loss.over == "batch":
        return f"refused: {loss.why}"
    state = state_of(network, case.loss if isinstance(case.loss, nn.Module) else None)
    runner = Runner(graph.segment(0, len(graph.layers) - 1, with_loss=True), state)
    worst = max(apart(case, runner, draw) for _ in range(5))
    assert worst <= CLOSE, f"{worst:.1e} off"
    return "with totals" if loss.over == "totals" else f"as a {loss.reduction}"


def apart(case: Case, runner: Runner, draw: torch.Generator) -> float:
    """The largest difference of loss and gradient from one process, for new outputs and targets."""
    output = torch.rand(SAMPLES, *case.shape, generator=draw)
    target = case.targets(draw)
    leaf = output.clone().requires_grad_()
    expected = case.loss(leaf, target)
    (gradient,) = torch.autograd.grad(expected, leaf)
    value, gradients = 0.0, []
    for share, piece, part in parts(runner, output, target):
        (slope,) = torch.autograd.grad(share * part, piece)
        gradients.append(slope)
        value += share * float(part.detach())
    off = (torch.cat(gradients) - gradient).abs().max().item()
    size = max(1.0, abs(float(expected.detach())), gradient.abs().max().item())
    return max(off, abs(value - float(expected.detach()))) / size


def parts(runner: Runner, output: Tensor, target: Tensor) -> Iterator[tuple[float, Tensor, Tensor]]:
    """(its share, the outputs, the loss) of each piece, as devices compute them."""
    loss = runner.segment.loss
    assert loss is not None
    totals: list[Tensor] = []
    if loss.cut is not None:
        totals = list(TargetTotals(loss, runner.state)({"target": target}).values())
    for rows, t in zip(output.split(SIZES), target.split(SIZES), strict=True):
        piece = rows.detach().requires_grad_()
        if loss.cut is not None:
            yield 1.0, piece, runner.piece_loss(piece, t, totals, len(t))
        else:
            share = len(t) / SAMPLES if loss.reduction == "mean" else 1.0
            yield share, piece, runner.loss(piece, t, len(t))


def main() -> int:
    """Prints the table; the exit code is 1 if a loss that was taken is not exact."""
    wrong, exact = 0, 0
    for name, case in CASES.items():
        try:
            text = verdict(case)
        except AssertionError as error:
            text, wrong = f"WRONG: {error}", wrong + 1
        exact += not text.startswith(("refused", "WRONG"))
        print(f"{name:32} {text}", flush=True)
    print(f"{exact} of {len(CASES)} exact, {len(CASES) - exact - wrong} refused, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
