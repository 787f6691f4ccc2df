"""Views in a row are one step in inference: the same numbers in the same memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from weft.graph.capture.module import capture, state_of
from weft.graph.execute import Runner
from weft.graph.steps import Step


class Reordered(nn.Module):
    """A linear layer whose result is viewed by a function."""

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.view = nn.Linear(6, 24), view

    def forward(self, x: Tensor) -> Tensor:
        return self.view(self.first(x)) * 2


def heads(x: Tensor) -> Tensor:
    return torch.unflatten(x, -1, (3, 8)).unsqueeze(0).transpose(0, -2).squeeze(-2)[1]


def copied_within(x: Tensor) -> Tensor:
    """The reshape must copy, so the row has no place in the operand's memory."""
    return x.transpose(1, 2).reshape(x.shape[0], 4, -1)


def shared(x: Tensor) -> Tensor:
    """Three views of one view."""
    q, k, v = torch.unflatten(x, -1, (3, 8)).permute(2, 0, 1, 3).unbind(0)
    return q.transpose(1, 2).unsqueeze(1) + k.transpose(1, 2).unsqueeze(1) - v.transpose(1, 2)[0]


def runner_of(model: nn.Module) -> Runner:
    graph = capture(model, torch.zeros(2, 5, 6), name="reordered")
    state = {key: tensor.clone() for key, tensor in state_of(model).items()}
    return Runner(graph.segment(0, len(graph.layers) - 1), state)


def answer(runner: Runner, x: Tensor) -> Tensor:
    (name,), (output,) = runner.segment.inputs, runner.segment.outputs
    return runner.forward({name: x})[output]


def names(runner: Runner) -> list[str]:
    return [type(step.function).__name__ for step in runner._steps[False]]


@pytest.mark.parametrize("view", [heads, copied_within, shared])
def test_every_call_answers_as_eager_mode_does(view: Callable[[Tensor], Tensor]) -> None:
    model = Reordered(view).eval()
    runner = runner_of(model)
    with torch.no_grad():
        for samples in (4, 4, 3, 4, 1, 3):  # the first call of a size, and later ones
            x = torch.randn(samples, 5, 6)
            assert torch.equal(answer(runner, x), model(x))


def test_an_operand_in_another_order_of_memory_is_another_case() -> None:
    model = nn.Sequential(Turned(), nn.Linear(6, 24))
    runner = runner_of(model)
    with torch.no_grad():
        for x in (
            torch.randn(3, 5, 6),
            torch.randn(5, 3, 6).transpose(0, 1),
            torch.randn(9, 5, 6)[::3],
        ):
            assert torch.equal(answer(runner, x), model(x))
            assert torch.equal(answer(runner, x[:, :, :]), model(x))


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1).transpose(1, 2).squeeze(2)


def test_views_in_a_row_are_one_step_in_inference_and_none_in_training() -> None:
    runner = runner_of(Reordered(heads))
    assert names(runner).count("_Row") == 1
    assert len(runner._steps[False]) < len(runner._steps[True])
    assert all(isinstance(step, Step) for step in runner._steps[False])


def test_gradients_in_inference_are_those_of_eager_mode() -> None:
    model = Reordered(heads).eval()
    runner = runner_of(model)
    x = torch.randn(3, 5, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    (given,) = torch.autograd.grad(answer(runner, x).square().sum(), x)
    assert torch.equal(expected, given)


def test_a_view_that_others_read_stays_a_step() -> None:
    """The middle of a row is an output: it has to be there."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 24)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            middle = torch.unflatten(self.first(x), -1, (3, 8)).transpose(0, 2)
            return middle, middle.unsqueeze(0).transpose(1, 2)

    model = Two().eval()
    runner = runner_of(model)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(4, 5, 6)
            given = runner.forward({next(iter(runner.segment.inputs)): x})
            for tensor, expected in zip(given.values(), model(x), strict=True):
                assert torch.equal(tensor, expected)
