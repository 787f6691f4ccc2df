"""A segment on an accelerator trains as one on the processor does. The accelerator here is a stand-in: its
tensors refuse to be mixed with this machine's, as those of a real device do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.accelerator import Accelerated, Border, Compute, accelerator
from weft.graph.capture.module import capture
from weft.graph.execute import Runner
from weft.graph.measure import measure
from weft.graph.network import Graph
from weft.runtime.node.probing.machine import drawn_state


class Far(Tensor):
    """A tensor on the stand-in device."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        mixed = [t for t in flat if isinstance(t, Tensor) and not isinstance(t, Far) and t.dim()]
        if mixed and not _LEAVING.get(func):
            raise RuntimeError(f"{func} got tensors of two devices")
        return super().__torch_function__(func, types, args, kwargs or {})


_LEAVING: dict[Any, bool] = {Tensor.as_subclass: True, Tensor.grad.__get__: True}


class StandIn(Border):
    """Counts what crosses."""

    def __init__(self) -> None:
        super().__init__("stand-in")
        self.bytes_there = self.bytes_back = 0

    def there(self, tensor: Tensor) -> Tensor:
        assert not isinstance(tensor, Far)
        self.bytes_there += tensor.nbytes
        return tensor.clone().as_subclass(Far)

    def back(self, tensor: Tensor) -> Tensor:
        # Autograd makes gradients itself: they are there, but do not have the stand-in's type.
        self.bytes_back += tensor.nbytes
        return tensor.as_subclass(Tensor).clone()


@pytest.fixture
def graph() -> Graph:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
        nn.Linear(4 * 36, 10),
    )  # fmt: skip
    return capture(module, torch.rand(2, 1, 8, 8), name="small")


def trained(graph: Graph, runner: Runner, steps: int = 3) -> list[float]:
    """Losses of a few steps in two pieces each, with gradients of the inputs."""
    optimizer = torch.optim.SGD(runner.parameters, lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for step in range(steps):
        for piece in range(2):
            x = torch.rand(4, 1, 8, 8, generator=generator).requires_grad_()
            (output,) = runner.forward({"input": x}, training=True, seed=step * 2 + piece).values()
            loss = output.square().mean()
            loss.backward()
            assert x.grad is not None
            losses.append(float(loss.detach()) + float(x.grad.sum()))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def test_it_trains_the_same_network(graph: Graph) -> None:
    whole = graph.segment(0, len(graph.layers) - 1)
    assert list(whole.inputs) == ["input"]
    here, there = drawn_state(graph.state), drawn_state(graph.state)
    border = StandIn()
    expected = trained(graph, Runner(whole, here))
    assert trained(graph, Compute(border=border).runner(whole, there)) == expected
    for name, tensor in here.items():
        assert type(there[name]) is Tensor
        assert torch.equal(tensor, there[name]), name


def test_weights_cross_only_after_an_update(graph: Graph) -> None:
    whole, border = graph.segment(0, len(graph.layers) - 1), StandIn()
    runner = Accelerated(whole, drawn_state(graph.state), border)
    x = torch.rand(4, 1, 8, 8)
    runner.forward({"input": x})
    before = border.bytes_there
    runner.forward({"input": x})
    assert border.bytes_there - before == x.nbytes
    with torch.no_grad():
        runner.parameters[0].add_(1.0)
    runner.forward({"input": x})
    assert border.bytes_there - before == 2 * x.nbytes + runner.parameters[0].nbytes


def test_other_weights_are_there_too(graph: Graph) -> None:
    whole = graph.segment(0, len(graph.layers) - 1)
    runner = Accelerated(whole, drawn_state(graph.state), StandIn())
    name = runner.trained_names[0]
    assert isinstance(runner.like({name: torch.zeros_like(runner.state[name])}), Accelerated)


def test_it_is_measured_there(graph: Graph) -> None:
    border = StandIn()
    times = measure(
        graph, drawn_state(graph.state), batch=4, repeats=1, wall=True, compute=Compute(1, border)
    )
    assert sum(times.forward_s) + sum(times.forward_call_s) > 0  # one look can give either part 0
    assert border.bytes_there > 0


@pytest.mark.parametrize(
    ("name", "words"),
    [("gpu", "is not allowed"), ("cuda:x", "is not allowed"), ("cuda:99", "finds no cuda|devices"),
     ("mps", "finds no mps"), ("xpu:0", "finds no xpu")],
)  # fmt: skip
def test_what_is_not_there_is_refused(name: str, words: str) -> None:
    kind = name.partition(":")[0]
    if kind in ("mps", "xpu") and getattr(torch, kind).is_available():
        pytest.skip(f"this machine has {kind}")
    with pytest.raises(InputError, match=words):
        accelerator(name)
    assert accelerator("cpu") is None
