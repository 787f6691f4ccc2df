"""A loss of the user's own over the classes of one peer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError
from weft.graph.split.classes.loss import check_class_loss, loss_over

LOGITS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
COLUMNS = torch.tensor([0, 1, 2, 2, 1, 0])


def squares(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, functional.one_hot(target, output.shape[1]).float())


def ten(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, functional.one_hot(target, 10).float())


def hardest(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, reduction="none").amax()


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), squares,
        nn.CrossEntropyLoss(reduction="sum"), nn.NLLLoss(),
    ],
)  # fmt: skip
def test_a_loss_that_treats_all_classes_alike_is_the_same_over_some_of_them(loss: Any) -> None:
    check_class_loss(loss, 10, {3, 5})
    assert torch.equal(loss_over(loss, [7, 2, 4])(LOGITS, COLUMNS), loss(LOGITS, COLUMNS))


def test_a_peer_has_the_weights_of_its_own_classes() -> None:
    weight = torch.arange(1.0, 11.0)
    loss = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1)
    check_class_loss(loss, 10, {3})
    own = loss_over(loss, [7, 2, 4])
    expected = nn.CrossEntropyLoss(weight=weight[[7, 2, 4]], label_smoothing=0.1)
    assert torch.equal(own(LOGITS, COLUMNS), expected(LOGITS, COLUMNS))
    assert loss.weight is weight


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (ten, "the loss ten .* with 5 classes"),
        (hardest, "no mean or sum over samples"),
        (nn.CrossEntropyLoss(ignore_index=3), "treats some classes otherwise"),
        (nn.CrossEntropyLoss(weight=torch.ones(9)), "9 weights of classes, and there are 10"),
        (nn.MSELoss(), "does not work"),
    ],
)
def test_others_are_refused_in_words(loss: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        check_class_loss(loss, 10, {5})
