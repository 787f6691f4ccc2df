"""What torch.export does not see in forward is refused with its line, or made right."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.graph.layered import eager, in_layers
from weft.errors import InputError
from weft.graph.capture.module import capture, state_of


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


class Turned(torch.autograd.Function):
    """Turns the gradient, as for training against a domain's classifier."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Tensor:
        return -gradient[0]


class Sparing(torch.autograd.Function):
    """An activation that keeps less for its backward pass; its gradient is the ordinary one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient[0] * (s + x * s * (1 - s))


class OwnBackward(Net):
    def odd(self, x: Tensor) -> Tensor:
        return Turned.apply(x)  # type: ignore[no-untyped-call,no-any-return]


kept_apply = Turned.apply


class KeptApply(Net):
    def odd(self, x: Tensor) -> Tensor:
        return kept_apply(x)  # type: ignore[no-untyped-call,no-any-return]


class Hooked(Net):
    def odd(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 3)
        return x


class PartHooked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.last.register_full_backward_hook(lambda part, before, after: None)


class WeightHooked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.weight.register_hook(lambda gradient: gradient * 0.5)


class Drawn(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x * random.uniform(0.5, 1.5)


class DrawnByNumpy(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x * float(np.random.rand())


class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def odd(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Remembering(Net):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def odd(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        return x + len(self.seen)


class Before(Net):
    """The mean of the minibatch before, in an attribute that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(6)

    def odd(self, x: Tensor) -> Tensor:
        y = x + self.mean
        self.mean = x.detach().mean(0)
        return y


class Limited(Net):
    def odd(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.last.weight.clamp_(-0.1, 0.1)
        return x


LINE = r"\(test_unseen.py, line \d+\)"
REFUSED: list[tuple[Callable[[], nn.Module], str]] = [
    (OwnBackward, rf"{LINE}: the gradient of Turned.backward is not that of its forward.*detach"),
    (KeptApply, rf"{LINE}: the gradient of Turned.backward is not"),
    (Hooked, rf"a hook is set there {LINE} that sees gradients.*Remove it"),
    (PartHooked, "last has a hook that sees gradients"),
    (WeightHooked, "first.weight has a hook that sees gradients"),
    (Drawn, rf"{LINE}: forward draws random numbers with Python's random.*torch.rand"),
    (DrawnByNumpy, rf"{LINE}: forward draws random numbers with numpy.random"),
    (Counting, r"\(calls, test_unseen.py, line \d+ is read and then changed\).*register_buffer"),
    (Remembering, r"\(seen, test_unseen.py, line \d+ is read and then changed\)"),
    (Before, r"\(mean, test_unseen.py, line \d+ is read and then changed\)"),
    (Limited, "changes its parameter last.weight in forward.*clamp"),
]


@pytest.mark.parametrize(("kind", "words"), REFUSED, ids=lambda x: getattr(x, "__name__", ""))
def test_what_a_graph_cannot_hold_is_refused_with_its_line(
    kind: Callable[[], nn.Module], words: str
) -> None:
    torch.manual_seed(0)
    with pytest.raises(InputError, match=words):
        capture(kind(), torch.randn(2, 6), mode="train")


@pytest.mark.parametrize("kind", [OwnBackward, Hooked, PartHooked], ids=lambda kind: kind.__name__)
def test_gradients_made_by_hand_do_not_matter_for_answers(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(5, 6)
    graph = capture(module, x[:2], mode="infer")
    with torch.no_grad():
        assert torch.equal(in_layers(graph, state_of(module), x, training=False), module(x))


class Frugal(Net):
    def odd(self, x: Tensor) -> Tensor:
        return Sparing.apply(x)  # type: ignore[no-untyped-call,no-any-return]


class OldCheckpoint(Net):
    def odd(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(torch.tanh, self.first(x), use_reentrant=True)
        return result


class Inferred(Net):
    def odd(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            mean = x.mean(1, keepdim=True)
        return x - mean.clone()


class Table(Net):
    """A table that is made by the first call and kept, and a tensor that is kept for others to see."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None
        self.size = 0
        self.shown: list[Tensor] = []

    def odd(self, x: Tensor) -> Tensor:
        if self.table is None or self.size < x.shape[1]:
            self.table, self.size = torch.arange(6.0) / 6, x.shape[1]
        self.shown.append(x)
        return x + self.table


class Spectral(Net):
    """Buffers that forward changes in place, by operators that write their result to a given tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.spectral_norm(self.first)


@pytest.mark.parametrize(
    "kind", [Frugal, OldCheckpoint, Inferred, Table, Spectral], ids=lambda kind: kind.__name__
)
def test_what_torch_export_shows_otherwise_is_made_right(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(5, 6)
    graph = capture(module, x[:2], mode="train")
    state = {name: tensor.clone() for name, tensor in state_of(module).items()}
    reference = copy.deepcopy(module).train()
    expected = eager(reference, x, graph)
    expected.square().sum().backward()
    assert torch.allclose(in_layers(graph, state, x, training=True), expected, atol=1e-6)
    for name, parameter in reference.named_parameters():
        gradient = state[name].grad
        assert gradient is not None, name
        assert torch.allclose(gradient, parameter.grad, atol=1e-5), name  # type: ignore[arg-type]
    for name, buffer in reference.named_buffers():
        assert torch.allclose(state[name], buffer, atol=1e-6), name


def test_capture_leaves_attributes_as_they_were() -> None:
    module = Table()
    capture(module, torch.randn(2, 6))
    assert (module.table, module.size, module.shown) == (None, 0, [])
    counting = Counting()
    with pytest.raises(InputError):
        capture(counting, torch.randn(2, 6))
    assert counting.calls == 0


class SetsHooks(Net):
    """Sets a hook in its first forward pass, as transformers do to collect hidden states."""

    def odd(self, x: Tensor) -> Tensor:
        if not getattr(self, "ready", False):
            self.first.register_forward_hook(lambda part, before, after: after * 2)
            self.ready = True
        return x + self.first(x)


def test_a_hook_that_forward_sets_is_set_once() -> None:
    torch.manual_seed(0)
    module, x = SetsHooks(), torch.randn(5, 6)
    for _ in range(2):
        graph = capture(module, x[:2], mode="infer")
        assert not module.first._forward_hooks
    with torch.no_grad():
        expected = copy.deepcopy(module).eval()(x)
    answer = in_layers(graph, state_of(module), x, training=False)
    assert torch.allclose(answer, expected, atol=1e-6)


class Number(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def odd(self, x: Tensor) -> Tensor:
        return x * self.scale.item()


class ByNumpy(Net):
    def odd(self, x: Tensor) -> Tensor:
        return x * torch.from_numpy(x.detach().numpy() > 0)


class OwnGradient(Net):
    def odd(self, x: Tensor) -> Tensor:
        result: Tensor = torch.func.grad(lambda y: torch.tanh(y).sum())(x)
        return result


class Data(Net):
    def odd(self, x: Tensor) -> Tensor:
        self.last.weight.data = F.normalize(self.last.weight.data)
        return x


class Chosen(Net):
    def odd(self, x: Tensor) -> Tensor:
        result: Tensor = torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))
        return result


class Packed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(3, 6, batch_first=True)

    def odd(self, x: Tensor) -> Tensor:
        lengths = (x[:, 0] > 0).long() + 1
        packed = nn.utils.rnn.pack_padded_sequence(
            x.view(-1, 2, 3), lengths, batch_first=True, enforce_sorted=False
        )
        result: Tensor = self.memory(packed)[1][-1]
        return result


class Complex(Net):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.ones(4, dtype=torch.cfloat))

    def odd(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * self.filter, 6)


def scripted() -> nn.Module:
    part: nn.Module = torch.jit.script(nn.Linear(6, 6))  # type: ignore[no-untyped-call]
    return nn.Sequential(part, nn.Linear(6, 3))


ADVICE: list[tuple[Callable[[], nn.Module], str]] = [
    (Number, rf"{LINE}: operator .* keep the number in a tensor, without .item"),
    (ByNumpy, rf"{LINE}.*leave NumPy out of forward"),
    (OwnGradient, "forward computes a gradient of its own .*write the derivative down"),
    (Data, "Use x.detach.. in place of x.data"),
    (Chosen, rf"{LINE}.*use torch.where"),
    (Packed, rf"{LINE}.*Give the recurrent network the padded tensor"),
    (Complex, "filter has complex numbers.*view_as_complex"),
    (scripted, "torch.jit module; give the module that it was made from"),
]


@pytest.mark.parametrize(("kind", "words"), ADVICE, ids=lambda x: getattr(x, "__name__", ""))
def test_a_refusal_says_what_to_do(kind: Callable[[], nn.Module], words: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(InputError, match=words):
        capture(kind(), torch.randn(2, 6), mode="train")
