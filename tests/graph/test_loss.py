"""A loss is captured like a layer, and it is known whether it averages or sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.execute import Runner

CLASSES = torch.tensor([0, 2, 1, 1, 0])


def captured(loss: Any, target: Tensor) -> tuple[Runner, str]:
    torch.manual_seed(0)
    module = nn.Linear(4, 3)
    graph = capture_loss(capture(module, torch.zeros(2, 4)), loss, target[:2])
    assert graph.loss is not None
    state = state_of(module, loss if isinstance(loss, nn.Module) else None)
    return Runner(graph.segment(0, 0, with_loss=True), state), graph.loss.reduction


@pytest.mark.parametrize(
    ("loss", "target", "reduction"),
    [
        (nn.CrossEntropyLoss(), CLASSES, "mean"),
        (nn.CrossEntropyLoss(reduction="sum"), CLASSES, "sum"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), CLASSES, "mean"),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])), CLASSES, "mean"),
        (nn.MSELoss(), torch.rand(5, 3), "mean"),
        (nn.BCELoss(), torch.rand(5, 3), "mean"),
        (nn.BCEWithLogitsLoss(), torch.rand(5, 3), "mean"),
        (functional.l1_loss, torch.rand(5, 3), "mean"),
        (lambda y, t: ((y - t) ** 2).sum(), torch.rand(5, 3), "sum"),
    ],
)
def test_a_captured_loss_is_the_loss(loss: Any, target: Tensor, reduction: str) -> None:
    runner, found = captured(loss, target)
    assert found == reduction
    for n in (1, 2, 5):
        output = torch.rand(n, 3)
        torch.testing.assert_close(runner.loss(output, target[:n], n), loss(output, target[:n]))


def test_class_weights_travel_with_the_state_and_are_not_trained() -> None:
    runner, _ = captured(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])), CLASSES)
    assert not runner.segment.state["loss_weight"].trainable
    assert len(runner.parameters) == 2


def test_a_loss_of_several_numbers_is_refused_with_their_shape() -> None:
    with pytest.raises(InputError, match=r"shape \(4,\)"):
        captured(nn.CrossEntropyLoss(reduction="none"), CLASSES)


def test_a_segment_without_a_loss_says_so() -> None:
    module = nn.Linear(4, 3)
    runner = Runner(capture(module, torch.zeros(2, 4)).segment(0, 0), state_of(module))
    with pytest.raises(InputError, match="capture_loss"):
        runner.loss(torch.zeros(1, 3), torch.zeros(1), 1)
