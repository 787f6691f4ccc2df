"""Losses of pieces add up exactly, with the sums over all targets of the minibatch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.execute import Runner, TargetTotals
from weft.graph.network import Graph, Loss

Function = Callable[[Tensor, Tensor], Tensor]
SAMPLES, CLASSES, LENGTH = 9, 4, 5


class Case(NamedTuple):
    """A loss, the shape of one sample's output, and targets of SAMPLES samples from a generator."""

    loss: Function
    shape: tuple[int, ...]
    targets: Callable[[torch.Generator], Tensor]


def classes(least: int = 0, *shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda g: torch.randint(least, CLASSES, (SAMPLES, *shape), generator=g)


def with_padding(g: torch.Generator) -> Tensor:
    """Sequences of unequal lengths; some samples are padded from their first token on."""
    lengths = torch.randint(0, LENGTH + 1, (SAMPLES, 1), generator=g)
    return classes(0, LENGTH)(g).masked_fill(torch.arange(LENGTH) >= lengths, -100)


def sparse(g: torch.Generator) -> Tensor:
    numbers = torch.rand(SAMPLES, CLASSES, generator=g)
    return numbers * (numbers > 0.5)


def shifted(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(
        output[:, :-1].reshape(-1, CLASSES), target[:, 1:].reshape(-1), ignore_index=-100
    )


def masked_by_hand(output: Tensor, target: Tensor) -> Tensor:
    mask = target > 0
    return torch.where(mask, (output - target).abs(), 0.0).sum() / mask.sum().clamp(min=1)


def per_token(output: Tensor, target: Tensor) -> Tensor:
    each = functional.cross_entropy(output.transpose(1, 2), target, reduction="none")
    return each.sum() / (target != -100).sum()


W = torch.tensor([1.0, 0.5, 3.0, 0.1])
ONE, ROW = (CLASSES,), (LENGTH, CLASSES)
EXACT: dict[str, Case] = {
    "weights": Case(nn.CrossEntropyLoss(weight=W), ONE, classes()),
    "ignored": Case(nn.CrossEntropyLoss(ignore_index=1), ONE, classes()),
    "weights, ignored, smoothing": Case(
        nn.CrossEntropyLoss(weight=W, ignore_index=2, label_smoothing=0.2), ONE, classes()
    ),
    "ignored below zero": Case(nn.CrossEntropyLoss(ignore_index=-1), ONE, classes(-1)),
    "maps": Case(
        nn.CrossEntropyLoss(weight=W, ignore_index=0), (CLASSES, LENGTH), classes(0, LENGTH)
    ),
    "shifted, padding": Case(shifted, ROW, with_padding),
    "each token by hand": Case(per_token, ROW, with_padding),
    "masked mean": Case(masked_by_hand, ONE, sparse),
    "mean and a sum of outputs": Case(
        lambda y, t: functional.mse_loss(y, t) + 0.01 * y.abs().sum(), ONE, sparse
    ),
    "ignored and a mean of outputs": Case(
        lambda y, t: (
            functional.cross_entropy(y, t, ignore_index=1) + 0.1 * y.square().mean(1).mean(0)
        ), ONE, classes(),
    ),
    "masked BCE": Case(
        lambda y, t: (
            functional.binary_cross_entropy_with_logits(y, t, reduction="none") * (t > 0)
        ).sum() / (t > 0).sum(), ONE, sparse,
    ),
    "one less a masked mean": Case(
        lambda y, t: 1 - 2 * ((y * t) * (t > 0)).sum() / (t > 0).sum() + 0.5, ONE, sparse,
    ),
    "less than a total": Case(
        lambda y, t: (t > 0).float().mean() - ((y - t) ** 2 * (t > 0)).sum() / (t > 0).sum(), ONE, sparse,
    ),
    "weights by the classes of a minibatch": Case(
        lambda y, t: (
            functional.cross_entropy(y, t, reduction="none")
            * (len(t) / functional.one_hot(t, CLASSES).sum(0).clamp(min=1))[t]
        ).mean(), ONE, classes(),
    ),
    "targets without their mean": Case(
        lambda y, t: functional.mse_loss(y, t - t.mean(0)), ONE, sparse
    ),
}  # fmt: skip
# Each is captured, which takes a second: the others are a proof.
QUICK = {
    "weights, ignored, smoothing",
    "shifted, padding",
    "masked mean",
    "mean and a sum of outputs",
    "one less a masked mean",
}
REFUSED: dict[str, tuple[Function, str]] = {
    "root": (lambda y, t: functional.mse_loss(y, t).sqrt(), "sqrt of a sum"),
    "square of a mean": (
        lambda y, t: functional.mse_loss(y, t) + y.mean(0).square().sum(), "square of a sum",
    ),
    "outputs without their mean": (
        lambda y, t: functional.mse_loss(y - y.mean(0), t), "reads a sum over all samples' outputs",
    ),
    "outputs weighted by outputs": (lambda y, t: (y * t).sum() / y.sum(), "not linear"),
    "similarities of all samples": (
        lambda y, t: functional.cross_entropy(y @ y.T, torch.arange(len(y))), "on other samples",
    ),
    "a limited sum": (
        lambda y, t: ((y - t) ** 2).sum().clamp(max=1e6), "clamp of a sum",
    ),
}  # fmt: skip


@cache
def network(shape: tuple[int, ...]) -> tuple[nn.Module, Graph]:
    module = nn.Sequential(nn.Linear(3, math.prod(shape)), nn.Unflatten(1, shape))
    return module, capture(module, torch.zeros(2, 3))


def record_of(loss: Any, shape: tuple[int, ...], targets: Tensor) -> tuple[Loss, Runner]:
    module, plain = network(shape)
    graph = capture_loss(plain, loss, targets)
    assert graph.loss is not None
    state = state_of(module, loss if isinstance(loss, nn.Module) else None)
    return graph.loss, Runner(graph.segment(0, len(graph.layers) - 1, with_loss=True), state)


@cache
def captured(name: str) -> tuple[Loss, Runner, TargetTotals]:
    case = EXACT[name]
    loss, runner = record_of(case.loss, case.shape, case.targets(torch.Generator().manual_seed(5)))
    assert loss.over == "totals", loss.why
    return loss, runner, TargetTotals(loss, runner.state)


def in_pieces(name: str, output: Tensor, target: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """The loss and its gradient, piece by piece, as devices compute them."""
    _, runner, totals_of = captured(name)
    totals = list(totals_of({"target": target}).values())
    value, gradients = torch.zeros(()), []
    for o, t in zip(torch.split(output, sizes), torch.split(target, sizes), strict=True):
        leaf = o.detach().requires_grad_()
        part = runner.piece_loss(leaf, t, totals, len(o))
        gradients += torch.autograd.grad(part, leaf)
        value = value + part.detach()
    return value, torch.cat(gradients)


@st.composite
def cuts(draw: st.DrawFn) -> list[int]:
    ends = sorted(draw(st.sets(st.integers(1, SAMPLES - 1))))
    return [b - a for a, b in zip([0, *ends], [*ends, SAMPLES], strict=True)]


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.proof) for n in EXACT]
)
@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10**6), sizes=cuts(), one_class=st.booleans())
def test_pieces_add_up_to_the_loss_of_one_process(
    name: str, seed: int, sizes: list[int], one_class: bool
) -> None:
    case, generator = EXACT[name], torch.Generator().manual_seed(seed)
    output = torch.rand(SAMPLES, *case.shape, generator=generator)
    target = case.targets(generator)
    if one_class:  # of the second half: a piece may have nothing that counts
        target[SAMPLES // 2 :] = target[-1:]
    leaf = output.clone().requires_grad_()
    expected = case.loss(leaf, target)
    if not expected.isfinite():  # all targets are ignored: 0 / 0 in one process too
        return
    (gradient,) = torch.autograd.grad(expected, leaf)
    value, pieces = in_pieces(name, output, target, sizes)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pieces, gradient, rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(
    weights=st.lists(st.floats(0, 10, width=32, allow_subnormal=False), min_size=4, max_size=4),
    sizes=cuts(),
)
def test_pieces_add_up_with_any_class_weights(weights: list[float], sizes: list[int]) -> None:
    _, runner, _ = captured("weights, ignored, smoothing")
    case = EXACT["weights, ignored, smoothing"]
    generator = torch.Generator().manual_seed(len(sizes))
    output, target = torch.rand(SAMPLES, CLASSES, generator=generator), case.targets(generator)
    expected = functional.cross_entropy(
        output, target, torch.tensor(weights), ignore_index=2, label_smoothing=0.2
    )
    if not expected.isfinite():
        return
    before = runner.state["loss_weight"].clone()
    try:
        runner.state["loss_weight"].copy_(torch.tensor(weights))
        value, _ = in_pieces("weights, ignored, smoothing", output, target, sizes)
    finally:
        runner.state["loss_weight"].copy_(before)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


def test_a_piece_whose_targets_are_all_ignored_adds_nothing() -> None:
    target = torch.tensor([1, 1, 1, 0, 2, 3, 1, 0, 1])
    output = torch.rand(SAMPLES, CLASSES)
    value, gradient = in_pieces("ignored", output, target, [3, 6])
    assert gradient[:3].abs().max() == 0
    torch.testing.assert_close(value, functional.cross_entropy(output, target, ignore_index=1))


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_follow_from_its_pieces_says_why(name: str) -> None:
    loss, says = REFUSED[name]
    record, _ = record_of(loss, ONE, sparse(torch.Generator().manual_seed(0)))
    assert (record.over, record.cut) == ("batch", None)
    assert says in record.why


class Learned(nn.Module):
    """A loss with a weight of its own, and one that keeps a mean."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1), requires_grad=not mean)
        self.register_buffer("middle", torch.zeros(CLASSES))
        self.mean = mean

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if self.mean:
            self.middle.mul_(0.9).add_(output.detach().mean(0), alpha=0.1)
        return (self.scale.exp() * (output - self.middle - target).square()).mean()


@pytest.mark.parametrize(
    ("loss", "words"),
    [(Learned(mean=False), "parameters of its own"), (Learned(mean=True), "changes its buffer")],
)
def test_a_loss_that_training_would_change_is_refused(loss: nn.Module, words: str) -> None:
    with pytest.raises(InputError, match=words):
        record_of(loss, ONE, sparse(torch.Generator().manual_seed(0)))


def gaussian(output: Tensor, target: Tensor) -> Tensor:
    return functional.gaussian_nll_loss(output[:, :2], target[:, :2], output[:, 2:].square() + 0.1)


def intersection(output: Tensor, target: Tensor) -> Tensor:
    both = (output.sigmoid() * target).sum(1)
    return 1 - (both / (output.sigmoid() + target).sum(1)).mean()


@pytest.mark.parametrize("loss", [gaussian, intersection])
def test_losses_that_test_data_or_turn_a_mean_are_means(loss: Function) -> None:
    record, _ = record_of(loss, ONE, sparse(torch.Generator().manual_seed(0)))
    assert (record.over, record.reduction) == ("samples", "mean")


def masked_squares(output: Tensor, target: Tensor) -> Tensor:
    """torch broadcasts the target together with the output before the mask is read."""
    kept = target[:, 0] > 0.5
    each = functional.mse_loss(output, target, reduction="none").sum(1)
    return (each * kept).sum() / (kept.sum() + 1e-6)


LATER: dict[str, tuple[Function, Callable[[torch.Generator], Tensor]]] = {
    "class 255 is ignored": (
        lambda y, t: functional.cross_entropy(y, t, ignore_index=255), classes(),
    ),
    "99 is no number": (
        lambda y, t: ((y - t) ** 2 * (t != 99)).sum() / (t != 99).sum(), sparse,
    ),
    "class 77 by hand": (
        lambda y, t: (
            functional.cross_entropy(y, t.clamp(max=3), reduction="none") * (t != 77)
        ).sum() / (t != 77).sum(), classes(),
    ),
    "a mask after a square": (masked_squares, sparse),
}  # fmt: skip


@pytest.mark.parametrize("name", LATER)
def test_a_mask_counts_although_no_target_at_hand_is_masked(name: str) -> None:
    """Only the first minibatch of a generator is known when its loss is captured."""
    loss, targets = LATER[name]
    _, plain = network(ONE)
    some = targets(torch.Generator().manual_seed(0))
    record = capture_loss(plain, loss, some, complete=False).loss
    assert record is not None
    assert (record.over, record.why) == ("totals", "")


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, t: ((y - t) ** 2 / y.detach().abs().max().clamp(min=10)).mean(),
        lambda y, t: torch.where(
            y.abs().max() > 1e3, (y - t).abs().mean(), functional.mse_loss(y, t)
        ),
    ],
)
def test_a_maximum_that_matters_for_large_outputs_only_is_found(loss: Function) -> None:
    record, _ = record_of(loss, ONE, sparse(torch.Generator().manual_seed(0)))
    assert record.over == "batch"
    assert "max over samples" in record.why


weights = nn.Parameter(torch.ones(3))
STRANGE: dict[str, tuple[Function, str]] = {
    "noise": (
        lambda y, t: functional.mse_loss(y + torch.randn_like(y), t), "draws random numbers",
    ),
    "dropout": (lambda y, t: functional.mse_loss(functional.dropout(y), t), "draws random numbers"),
    "two results": (lambda y, t: (functional.mse_loss(y, t), y), "returns 2 tensors"),  # type: ignore[dict-item,return-value]
    "the network's weights": (
        lambda y, t: functional.mse_loss(y, t) + weights.square().sum(),
        r"test_loss_totals.py, line \d+\): reads a weight of shape \(3,\).*weight_decay",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_a_loss_that_devices_would_compute_otherwise_is_refused(name: str) -> None:
    loss, words = STRANGE[name]
    with pytest.raises(InputError, match=words):
        record_of(loss, ONE, sparse(torch.Generator().manual_seed(0)))


class Compared(nn.Module):
    """Compares what a fixed network makes of output and target."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.fixed.requires_grad_(False)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(self.fixed(output), self.fixed(target))


@pytest.mark.parametrize("whole", [True, False])
def test_a_loss_in_evaluation_mode_stays_in_it(whole: bool) -> None:
    loss = Compared()
    (loss if whole else loss.fixed).eval()
    target = sparse(torch.Generator().manual_seed(0))
    record, runner = record_of(loss, ONE, target)
    output = torch.rand(SAMPLES, *ONE)
    assert (record.over, record.reduction) == ("samples", "mean")
    torch.testing.assert_close(runner.loss(output, target, SAMPLES), loss(output, target))


def test_the_lengths_of_a_ctc_loss_are_targets() -> None:
    def loss(output: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        scores = output.log_softmax(2).transpose(0, 1)
        whole = torch.full((output.shape[0],), LENGTH)
        return functional.ctc_loss(scores, target[0], whole, target[1])

    _, plain = network(ROW)
    words, lengths = torch.randint(1, CLASSES, (SAMPLES, 2)), torch.randint(1, 3, (SAMPLES,))
    graph = capture_loss(plain, loss, (words, lengths))
    assert graph.loss is not None
    assert (graph.loss.over, graph.loss.reduction) == ("samples", "mean")


def test_a_size_that_depends_on_data_is_told_with_the_line_of_the_loss() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return output[target > 0].mean()

    with pytest.raises(InputError, match=r"test_loss_totals.py, line \d+\).*multiply by the mask"):
        record_of(loss, ONE, sparse(torch.Generator().manual_seed(0)))
