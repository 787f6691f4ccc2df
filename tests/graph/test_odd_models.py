"""Small networks with one odd feature each: cut everywhere they compute and learn what eager mode does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.graph.layered import eager, in_layers
from weft.errors import InputError
from weft.graph.capture.module import capture, state_of
from weft.graph.execute import Runner


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


class SliceAssigned(Net):
    def odd(self, x: Tensor) -> Tensor:
        x[:, 0] = 0
        x += 1
        x[:, 1:3].mul_(2)
        return F.relu_(x)


class Counted(Net):
    """A buffer that forward changes, and that the result depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(6))

    def odd(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x * self.calls - self.mean


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(3, 3, 2, batch_first=True, bidirectional=True)

    def odd(self, x: Tensor) -> Tensor:
        states, (_, cells) = self.memory(x.view(-1, 2, 3))
        return states[:, -1] + cells.sum(0).repeat(1, 2)


class Steps(Net):
    """One cell, used again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(2, 6)

    def odd(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 6)
        for part in x.split(2, dim=1):
            h = self.cell(part, h)
        return h


class Tied(Net):
    """The weight of the first layer is used again, transposed, after another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.between = nn.Linear(6, 6)

    def odd(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.between(x)), self.first.weight.t())


class Waves(Net):
    def odd(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        return torch.fft.irfft(spectrum * torch.polar(spectrum.abs(), spectrum.angle()), 6)


class ConstantTest(Net):
    """Whether a mask is causal is tested in Python; the mask is the same for all inputs."""

    def odd(self, x: Tensor) -> Tensor:
        mask = torch.ones(6, 6).triu(1)
        return x @ mask if bool((mask == mask.triu()).all()) else x


class Noise(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) * 0.1


class Bag(Net):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(4, 6)

    def odd(self, x: Tensor) -> Tensor:
        return x * self.bag((x.detach() > 0).long())


class Experts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def odd(self, x: Tensor) -> Tensor:
        weight, index = self.gate(x).softmax(-1).topk(2)
        every = torch.stack([expert(x) for expert in self.experts], 1)
        return (every.gather(1, index[..., None].expand(-1, -1, 6)) * weight[..., None]).sum(1)


class Written(Net):
    """A small tensor that is neither parameter nor buffer."""

    def odd(self, x: Tensor) -> Tensor:
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, float("inf")]).clamp(max=6.0)


class WeightNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.utils.parametrizations.weight_norm(self.last)


class Fixed(Net):
    """A buffer that several layers read: each has a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(6))
        self.between = nn.Linear(6, 6)

    def odd(self, x: Tensor) -> Tensor:
        return self.between(x * self.scale) * self.scale


class Length(Net):
    """`len` of a tensor, which Python makes an ordinary number."""

    def odd(self, x: Tensor) -> Tensor:
        return x.view(len(x), 2, 3).flip(1).reshape(len(x), -1)


class WithoutGradient(Net):
    def odd(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            largest = x.abs().amax(1, keepdim=True)
            half = largest / 2
        with torch.autocast("cpu", enabled=False):
            return x / (largest + half + 1)


class Checked(Net):
    """Tests of data that only raise: eager mode has no result where they fail."""

    def odd(self, x: Tensor) -> Tensor:
        assert bool((x.abs() < 1e6).all())
        if torch.any(x > 1e6):
            raise ValueError("too large")
        return x * 2


class ByHand(nn.Module):
    """Dense layers written as products with turned weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(6, 6) / 3 for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight.T)
        return x


class DrawnOnce(Net):
    """Random numbers that follow from no input, read in two layers."""

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape[0], 3)
        return self.last(self.first(x) + noise.repeat(1, 2)) + noise.flip(1)


LONGER = (
    Recurrent,
    Bag,
    Experts,
    WeightNorm,
    Waves,
    Steps,
)  # they add seconds, not lines of the source
ODD = [
    SliceAssigned, Counted, Tied, ConstantTest, Noise, Written, Fixed, Length, WithoutGradient, Checked,
    DrawnOnce, ByHand,
    *(pytest.param(kind, marks=pytest.mark.proof) for kind in LONGER),
]  # fmt: skip


@pytest.mark.parametrize("kind", ODD, ids=lambda kind: kind.__name__)
def test_it_computes_and_learns_what_eager_mode_does(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(5, 6)
    graph = capture(module, x[:2])
    assert len(graph.layers) >= 2
    state = {name: tensor.clone() for name, tensor in state_of(module).items()}
    reference = copy.deepcopy(module)
    reference.eval()
    with torch.no_grad():
        expected = eager(reference, x, graph)
    assert torch.allclose(in_layers(graph, state, x, training=False), expected, atol=1e-6)
    reference.train()
    expected = eager(reference, x, graph)
    expected.square().sum().backward()
    assert torch.allclose(in_layers(graph, state, x, training=True), expected, atol=1e-6)
    for name, parameter in reference.named_parameters():
        gradient = state[name].grad
        assert gradient is not None, name
        assert torch.allclose(gradient, parameter.grad, atol=1e-5), name  # type: ignore[arg-type]
    for name, buffer in reference.named_buffers():
        assert torch.allclose(state[name], buffer, atol=1e-6), name


class ByValue(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


class ByChance(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x * 2 if torch.rand([]) < 0.1 else x


class BySamples(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] % 2 else x


class ByMany(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > 2 else x


class SizeOfData(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x * x[x > 0].sum() if x.dim() == 2 else x


class Rows(Net):
    def odd(self, x: Tensor) -> Tensor:
        return torch.stack([row * 2 for row in x])


class RoundedPart(Net):
    def odd(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ self.first.weight


REFUSED: list[tuple[Any, str]] = [
    (Rows, r"test_odd_models.py, line \d+\): the number of samples becomes a fixed number"),
    (RoundedPart, "runs under torch.autocast"),
    (ByValue, r"test_odd_models.py, line \d+\): a test in Python depends on the numbers"),
    (ByChance, r"test_odd_models.py, line \d+\): a test in Python depends on .* random numbers"),
    (BySamples, "something else for 2 samples"),
    (ByMany, "something else for 2 samples"),
    (
        SizeOfData,
        r"test_odd_models.py, line \d+\): the size u\d+ depends on the numbers in a tensor",
    ),
]


@pytest.mark.parametrize(("kind", "words"), REFUSED, ids=lambda x: getattr(x, "__name__", ""))
def test_a_network_that_is_not_the_same_for_all_inputs_is_refused(kind: Any, words: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(InputError, match=words):
        capture(kind(), torch.randn(2, 6))


def test_a_mask_with_rows_for_each_sample_and_head_does_not_join_layers() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            bias = x.cumsum(1).repeat(2, 1)
            for part in self.parts:
                x = (part(x).repeat(2, 1) + bias).view(2, -1, 6).sum(0)
            return x

    module, x = Heads(), torch.randn(4, 6)
    graph = capture(module, x)
    assert len(graph.layers) == 4
    answer = Runner(graph.segment(0, 3), state_of(module)).forward({graph.inputs[0]: x})
    assert torch.allclose(answer[graph.output], module(x), atol=1e-6)


def test_a_chance_of_0_is_no_chance() -> None:
    class Never(Net):
        def odd(self, x: Tensor) -> Tensor:
            return x * 2 if torch.rand([]) < 0.0 else x

    module, x = Never(), torch.randn(4, 6)
    graph = capture(module, x)
    assert torch.allclose(in_layers(graph, state_of(module), x, False), module(x), atol=1e-6)
