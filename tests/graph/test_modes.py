"""A network is captured in one mode: parts in another one are named and refused, where it matters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.capture import capture, capture_loss


class Own(nn.Module):
    """Nobody knows what a user's module does in which mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.training else x


def network(part: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), part, nn.Linear(6, 2))


@pytest.mark.parametrize("part", [nn.BatchNorm1d(6), nn.Dropout(0.5), Own()])
@pytest.mark.parametrize("training", [True, False])
def test_a_part_in_another_mode_is_refused_by_name(part: nn.Module, training: bool) -> None:
    module = network(part).train(training)
    part.train(not training)
    mode = "training" if training else "eval"
    with pytest.raises(InputError, match=rf"in {mode} mode but .*2 \({type(part).__name__}\)"):
        capture(module, torch.zeros(2, 6))
    assert part.training != training


def test_a_frozen_part_deep_inside_is_named_with_its_path() -> None:
    module = nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), nn.Linear(6, 2))
    module[0].eval()
    with pytest.raises(InputError, match=r"0\.1 \(BatchNorm1d\)"):
        capture(module, torch.zeros(2, 6))


@pytest.mark.parametrize("training", [True, False])
def test_a_network_in_one_mode_is_captured_and_left_in_it(training: bool) -> None:
    module = network(nn.BatchNorm1d(6)).train(training)
    ends = capture(module, torch.zeros(2, 6)), capture(module.train(), torch.zeros(2, 6))
    assert ends[0] == ends[1]  # what is trained is always in training mode
    module.train(training)
    module[1].train(not training)  # an activation has no mode
    capture(module, torch.zeros(2, 6))
    assert [part.training for part in module] == [training, not training, training, training]


def test_a_loss_in_mixed_modes_is_refused_too() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5).eval()

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return nn.functional.mse_loss(self.drop(output), target)

    graph = capture(nn.Linear(4, 2), torch.zeros(2, 4))
    with pytest.raises(InputError, match=r"drop \(Dropout\)"):
        capture_loss(graph, Loss(), torch.zeros(2, 2))
