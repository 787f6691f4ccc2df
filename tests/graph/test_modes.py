"""Training and evaluation mode: each part is trained in its own mode, and answers are those of eval mode."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.execute import Runner
from weft.graph.network import Graph


class Own(nn.Module):
    """Computes something else in each mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.training else x


class Alike(nn.Module):
    """Reads the mode, but only for dropout."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


def network(part: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), part, nn.Linear(6, 2))


def computed(graph: Graph, state: dict[str, Tensor], x: Tensor, training: bool) -> Tensor:
    runner = Runner(graph.segment(0, len(graph.layers) - 1), state)
    return runner.forward({graph.inputs[0]: x}, training=training)[graph.output].detach()


@pytest.mark.parametrize("training", [True, False])
def test_a_branch_by_the_mode_is_taken_in_that_mode(training: bool) -> None:
    module, x = network(Own()), torch.randn(3, 6)
    graph = capture(module, x, mode="train" if training else "infer")
    expected = module.train(training)(x).detach()
    assert torch.equal(computed(graph, state_of(module), x, training), expected)


def test_one_graph_for_both_modes_is_refused_if_they_differ() -> None:
    with pytest.raises(InputError, match=r"test_modes.py, line \d+ reads self.training"):
        capture(network(Own()), torch.zeros(2, 6))


def test_who_reads_the_mode_for_dropout_alone_is_alike_in_both_modes() -> None:
    module, x = network(Alike()), torch.randn(3, 6)
    graph = capture(module, x)
    assert graph == capture(module, x, mode="train") == capture(module, x, mode="infer")
    assert torch.equal(computed(graph, state_of(module), x, False), module.eval()(x).detach())


@pytest.mark.parametrize("part", [nn.BatchNorm1d(6), nn.Dropout(0.5), Own()])
def test_a_frozen_part_stays_frozen_in_training(part: nn.Module) -> None:
    torch.manual_seed(0)
    module, x = network(part).train(), torch.randn(4, 6)
    part.eval()
    if isinstance(part, nn.BatchNorm1d):
        part.running_mean = torch.rand(6)
    graph = capture(module, x, mode="train")
    state = {name: tensor.clone() for name, tensor in state_of(module).items()}
    expected = copy.deepcopy(module)(x).detach()
    assert torch.allclose(computed(graph, state, x, training=True), expected, atol=1e-6)
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.named_buffers())
    assert not part.training


@pytest.mark.parametrize("part", [nn.BatchNorm1d(6), nn.Dropout(0.5), Own()])
def test_a_part_in_training_mode_of_a_network_in_eval_mode_is_refused_by_name(
    part: nn.Module,
) -> None:
    module = network(part).eval()
    part.train()
    with pytest.raises(InputError, match=rf"in eval mode but .*2 \({type(part).__name__}\)"):
        capture(module, torch.zeros(2, 6))
    assert part.training


@pytest.mark.parametrize("training", [True, False])
def test_a_network_in_one_mode_is_captured_and_left_in_it(training: bool) -> None:
    module = network(nn.BatchNorm1d(6)).train(training)
    ends = capture(module, torch.zeros(2, 6)), capture(module.train(), torch.zeros(2, 6))
    assert ends[0] == ends[1]  # what is trained is always in training mode
    module.train(training)
    module[1].train(not training)  # an activation has no mode
    capture(module, torch.zeros(2, 6))
    assert [part.training for part in module] == [training, not training, training, training]
    assert "training" not in vars(nn.Module)


def test_an_instance_norm_with_running_statistics_is_not_the_same_in_both_modes() -> None:
    module, x = (
        nn.Sequential(nn.Conv1d(2, 3, 1), nn.InstanceNorm1d(3, track_running_stats=True)),
        None,
    )
    x = torch.randn(2, 2, 5)
    with pytest.raises(InputError, match="something else in evaluation mode"):
        capture(module, x)
    graph = capture(module, x, mode="infer")
    assert torch.allclose(
        computed(graph, state_of(module), x, False), module.eval()(x).detach(), atol=1e-6
    )


def test_a_loss_keeps_the_modes_of_its_parts() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5).eval()

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return nn.functional.mse_loss(self.drop(output), target)

    graph = capture_loss(capture(nn.Linear(4, 2), torch.zeros(2, 4)), Loss(), torch.zeros(2, 2))
    assert graph.loss is not None
    assert graph.loss.over == "samples"
