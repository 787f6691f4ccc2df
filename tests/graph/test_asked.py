"""What forward asks torch or tells it: answers are those of inference, and what no device could know is
refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.graph.layered import eager, in_layers
from weft.errors import InputError
from weft.graph.capture import modes
from weft.graph.capture.module import capture, state_of
from weft.graph.network import Mode


class Net(nn.Module):
    """Two dense layers, and what a subclass does between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.odd(self.first(x)))
        return result

    def odd(self, x: Tensor) -> Tensor:
        return x


class AsksForGradients(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x * 2 if torch.is_grad_enabled() else x


class AsksTheTensor(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x * 2 if x.requires_grad else x


class Spectral(Net):
    """Each forward pass in training improves the estimated norm; inference reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.spectral_norm(self.first)


class OldSpectral(Net):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.spectral_norm(self.first)


class Siamese(Net):
    """A batch norm that one forward pass calls twice, so it counts two minibatches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def odd(self, x: Tensor) -> Tensor:
        left: Tensor = self.norm(x)
        right: Tensor = self.norm(x.flip(1))
        return (left - right).abs()


class Codes(Net):
    """Each sample takes the nearest code. torch.cdist has another way for more than 25 samples."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(5, 6))

    def odd(self, x: Tensor) -> Tensor:
        code = self.codes[torch.cdist(x, self.codes).argmin(1)]
        return x + (code - x).detach() + 0.1 * code


class CodesOfFew(Codes):
    def odd(self, x: Tensor) -> Tensor:
        return super().odd(x) if x.shape[0] <= 25 else x


ODD = [AsksForGradients, AsksTheTensor, Spectral, OldSpectral, Siamese, Codes]


@pytest.mark.parametrize("kind", ODD, ids=lambda kind: kind.__name__)
def test_answers_are_those_of_inference(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(30, 6)
    graph = capture(module, x[:2], mode="infer")
    with torch.no_grad():
        expected = copy.deepcopy(module).eval()(x)
    state = {name: tensor.clone() for name, tensor in state_of(module).items()}
    assert torch.allclose(in_layers(graph, state, x, training=False), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ODD, ids=lambda kind: kind.__name__)
def test_training_is_that_of_one_process(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(30, 6)
    graph = capture(module, x[:2], mode="train")
    state = {name: tensor.clone() for name, tensor in state_of(module).items()}
    expected = eager(module.train(), x, graph)
    expected.square().sum().backward()
    assert torch.allclose(in_layers(graph, state, x, training=True), expected, atol=1e-6)
    for name, parameter in module.named_parameters():
        gradient = state[name].grad
        assert gradient is not None, name
        assert torch.allclose(gradient, parameter.grad, atol=1e-5), name  # type: ignore[arg-type]
    for name, buffer in module.named_buffers():
        assert torch.allclose(state[name], buffer, atol=1e-6), name


def test_one_graph_for_both_is_refused_where_forward_asks() -> None:
    with pytest.raises(InputError, match=r"in evaluation mode \(test_asked.py, line \d+ reads"):
        capture(AsksForGradients(), torch.randn(2, 6))


def test_a_package_whose_name_begins_with_torch_is_not_torch(tmp_path: Path) -> None:
    """torchvision's StochasticDepth and GoogLeNet read the mode; their lines count as those of a user."""
    file = f"{modes._TORCH.rstrip('/')}vision/ops/depth.py"
    source = "def forward(self, x):\n    return x * 2 if self.training else x\n"
    space: dict[str, Callable[..., Tensor]] = {}
    exec(compile(source, file, "exec"), space)
    module = nn.Sequential(nn.Linear(6, 6), type("Depth", (nn.Module,), space)(), nn.Linear(6, 3))
    x = torch.randn(5, 6)
    graph = capture(module, x[:2], mode="infer")
    with torch.no_grad():
        expected = copy.deepcopy(module).eval()(x)
    assert torch.allclose(in_layers(graph, state_of(module), x, training=False), expected)


class Seeding(Net):
    def odd(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return x + torch.randn(6)


class OwnGenerator(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x + torch.randn(6, generator=torch.Generator().manual_seed(3))


class Unregistered(Net):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [nn.Linear(6, 6)]

    def odd(self, x: Tensor) -> Tensor:
        result: Tensor = self.parts[0](x)
        return result


LINE = r"\(test_asked.py, line \d+\)"
REFUSED: list[tuple[Callable[[], nn.Module], str, Mode]] = [
    (Seeding, rf"{LINE}: forward seeds torch's random numbers.*register_buffer", "infer"),
    (OwnGenerator, rf"{LINE}: forward uses an object of its own.*without generator=", "train"),
    (CodesOfFew, "something else for 26 samples", "train"),
    (Unregistered, rf"{LINE}: reads a weight of shape .* not its own.*nn.ModuleList", "train"),
]


@pytest.mark.parametrize(("kind", "words", "mode"), REFUSED)
def test_what_devices_could_not_know_is_refused_with_its_line(
    kind: Callable[[], nn.Module], words: str, mode: Mode
) -> None:
    with pytest.raises(InputError, match=words):
        capture(kind(), torch.randn(2, 6), mode=mode)
