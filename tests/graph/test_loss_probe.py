"""Whether a loss may be cut by samples is measured, not read from its name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError
from weft.graph.capture.module import capture, capture_loss

CLASSES = torch.tensor([0, 2, 1, 1, 0, 2])
TOKENS = torch.randint(1, 11, (6, 5), generator=torch.Generator().manual_seed(1))
NUMBERS = torch.rand(6, 3, generator=torch.Generator().manual_seed(2))
SPARSE = NUMBERS * (NUMBERS > 0.5)
WEIGHTS = torch.tensor([1.0, 2.0, 5.0])


def added(loss: Any, target: Tensor, network: nn.Module | None = None) -> tuple[str, str]:
    graph = capture(network or nn.Linear(4, 3), torch.zeros(2, 4))
    record = capture_loss(graph, loss, target).loss
    assert record is not None
    return record.reduction, record.over


def sequence_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 55), nn.Unflatten(1, (5, 11)))


def shifted(output: Tensor, target: Tensor, **more: Any) -> Tensor:
    """Every token but the last of its sample predicts the next one."""
    return functional.cross_entropy(
        output[:, :-1].reshape(-1, 11), target[:, 1:].reshape(-1), **more
    )


@pytest.mark.parametrize(
    ("loss", "target", "reduction"),
    [
        (nn.CrossEntropyLoss(), CLASSES, "mean"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), CLASSES, "mean"),
        (functional.cross_entropy, CLASSES, "mean"),
        (nn.CrossEntropyLoss(), NUMBERS, "mean"),
        (nn.NLLLoss(), CLASSES, "mean"),
        (nn.MSELoss(), NUMBERS, "mean"),
        (nn.L1Loss(), NUMBERS, "mean"),
        (nn.SmoothL1Loss(), NUMBERS, "mean"),
        (nn.HuberLoss(), NUMBERS, "mean"),
        (nn.BCELoss(), NUMBERS, "mean"),
        (nn.BCEWithLogitsLoss(), NUMBERS, "mean"),
        (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), NUMBERS, "mean"),
        (nn.KLDivLoss(reduction="batchmean"), NUMBERS, "mean"),
        (lambda y, t: ((y - t) ** 2).sum(1).mean(), NUMBERS, "mean"),
        (lambda y, t: ((y - t) ** 2).sum() / t.shape[0], NUMBERS, "mean"),
        (lambda y, t: functional.mse_loss(y, t) + 0.1 * y.abs().mean(), NUMBERS, "mean"),
        (nn.CrossEntropyLoss(reduction="sum"), CLASSES, "sum"),
        (nn.CrossEntropyLoss(weight=WEIGHTS, reduction="sum"), CLASSES, "sum"),
        (nn.CrossEntropyLoss(ignore_index=0, reduction="sum"), CLASSES, "sum"),
        (nn.MSELoss(reduction="sum"), NUMBERS, "sum"),
        (lambda y, t: (y - t).abs().sum() / 32, NUMBERS, "sum"),
    ],
)
def test_a_mean_or_a_sum_over_samples_is_known_as_one(
    loss: Any, target: Tensor, reduction: str
) -> None:
    assert added(loss, target) == (reduction, "samples")


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (nn.CrossEntropyLoss(weight=WEIGHTS), CLASSES),
        (nn.NLLLoss(weight=WEIGHTS), CLASSES),
        (nn.CrossEntropyLoss(ignore_index=0), CLASSES),
        (nn.CrossEntropyLoss(ignore_index=255), CLASSES),
        (nn.CrossEntropyLoss(), torch.tensor([0, -100, 1, 2, 1, -100])),
        (lambda y, t: functional.cross_entropy(y, t, ignore_index=-1), CLASSES),
        (lambda y, t: functional.cross_entropy(y, t, ignore_index=9), torch.tensor([0, 9, 1, 2])),
        (lambda y, t: ((y - t) ** 2 * (t > 0)).sum() / (t > 0).sum(), SPARSE),
        (lambda y, t: ((y - t) ** 2 * (t != -1)).sum() / (t != -1).sum(), NUMBERS),
        (lambda y, t: functional.mse_loss(y, t).sqrt(), NUMBERS),
        (lambda y, t: (y - t).abs().amax(), NUMBERS),
        (lambda y, t: -(y.log_softmax(0) * t).sum() / t.shape[0], NUMBERS),
        (lambda y, t: functional.mse_loss(y, t) + y.mean(0).square().sum(), NUMBERS),
        (lambda y, t: functional.mse_loss(y, t) + y.abs().sum(), NUMBERS),
        (lambda y, t: ((y - t) ** 2).sum() ** 2, NUMBERS),
    ],
)
def test_a_loss_that_is_no_mean_or_sum_over_samples_is_known_as_such(
    loss: Any, target: Tensor
) -> None:
    assert added(loss, target)[1] in ("totals", "batch")


def test_one_class_of_many_with_a_weight_of_its_own_is_found() -> None:
    weights = torch.ones(1000)
    weights[617] = 3.0
    target = torch.tensor([1, 2, 3])
    network = nn.Linear(4, 1000)
    assert added(nn.CrossEntropyLoss(), target, network) == ("mean", "samples")
    assert added(nn.CrossEntropyLoss(weight=weights), target, network)[1] == "totals"


def test_a_shifted_loss_of_equal_lengths_is_a_mean_and_one_with_padding_is_not() -> None:
    network = sequence_network()
    assert added(shifted, TOKENS, network) == ("mean", "samples")
    assert added(lambda y, t: shifted(y, t, ignore_index=0), TOKENS, network)[1] == "totals"
    assert added(
        lambda y, t: functional.cross_entropy(y.view(-1, 11)[:-1], t.view(-1)[1:]), TOKENS, network
    )[1] == "batch"  # fmt: skip


def test_a_loss_that_counts_is_refused_and_is_as_it_was() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.seen: Tensor

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            self.seen.add_(1)
            return functional.cross_entropy(output, target)

    loss = Counting()
    before = copy.deepcopy(loss.state_dict())
    graph = capture(nn.Linear(4, 3), torch.zeros(2, 4))
    with pytest.raises(InputError, match="changes its buffer seen"):
        capture_loss(graph, loss, CLASSES)
    assert loss.state_dict() == before


def test_a_loss_that_compares_neighbouring_samples_is_refused() -> None:
    """Two samples would be compared in another way than more."""
    with pytest.raises(InputError, match="must not choose by the number of samples"):
        added(lambda y, t: functional.mse_loss(y[1:], t[:-1]), NUMBERS)


def test_a_large_tensor_that_a_loss_does_not_own_is_refused_and_a_small_one_is_written_as_numbers() -> (
    None
):
    assert (
        added(lambda y, t: functional.cross_entropy(y, t, weight=WEIGHTS), CLASSES)[1] == "totals"
    )
    many = torch.rand(5000)
    with pytest.raises(InputError, match=r"shape \(5000,\).*register_buffer"):
        added(lambda y, t: functional.cross_entropy(y, t, weight=many), CLASSES, nn.Linear(4, 5000))
