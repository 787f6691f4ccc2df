"""A network in which samples meet is told apart from one that computes each sample for itself."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.execute import Runner
from weft.graph.network import Graph
from weft.planning.exactness import differs
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan, Shard
from weft.runtime.run.checks import check_loss
from weft.runtime.run.serving.attendants import check_outputs

FLEET = Fleet(
    (Device("a", gflops=1.0, data=True), Device("b", gflops=1.0)), (Link(("a", "b"), 1e3, 1e3),)
)


class Between(nn.Module):
    """Two dense layers, and a function between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.between(self.first(x)))
        return result


class Recurrent(nn.Module):
    """A recurrent network whose samples are its second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.memory = nn.Linear(6, 6), nn.GRU(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.memory(self.first(x).view(-1, 3, 2).transpose(0, 1))[0]
        return states.transpose(0, 1).flatten(1)


class Attention(nn.Module):
    """Attention over steps, or by mistake over samples."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.body = nn.TransformerEncoderLayer(3, 1, 4, 0.0, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.body(self.first(x).view(-1, 2, 3))
        return states.flatten(1)


class Frequent(nn.Module):
    """Only the gradient depends on the other samples: it is divided by how often a word occurs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 6, scale_grad_by_freq=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.words((x.abs() * 4).long().clamp(max=8)).mean(1))
        return result


class Running(nn.Module):
    """Keeps a mean over its samples in a buffer; `reads` says what it then subtracts."""

    mean: Tensor

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.first, self.last, self.reads = nn.Linear(6, 6), nn.Linear(6, 2), reads
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        now = x.mean(0)
        self.mean.mul_(0.9).add_(0.1 * now.detach())
        read = {"now": now, "the buffer": self.mean, "nothing": torch.zeros(6)}[self.reads]
        result: Tensor = self.last(x - read)
        return result


MEETING: dict[str, Callable[[], nn.Module]] = {
    "the mean": lambda: Between(lambda x: x - x.mean(0)),
    "neighbours": lambda: Between(lambda x: x + 0.5 * x.roll(1, 0)),
    "softmax over samples": lambda: Between(lambda x: x.softmax(0)),
    "similarities": lambda: Between(lambda x: (x @ x.T).softmax(1) @ x),
    "a permutation": lambda: Between(lambda x: x + x.flip(0)),
    "attention between samples": lambda: Attention(batch_first=False),
    "the mean, with noise": lambda: Between(lambda x: x + torch.randn_like(x) - x.mean(0)),
    "samples mixed by chance": lambda: Between(lambda x: x + x[torch.randperm(x.shape[0])]),
    "gradients by the frequency of words": Frequent,
    "a mean that is kept too": lambda: Running("now"),
    "a kept mean of these samples": lambda: Running("the buffer"),
}
ALONE: dict[str, Callable[[], nn.Module]] = {
    "another dimension": lambda: Between(lambda x: x.roll(1, 1) + x.softmax(1) - x.mean(1)[:, None]),
    "windows": lambda: Between(lambda x: (x.reshape(-1, 3) * 2).softmax(1).reshape(-1, 6)),
    "chosen places": lambda: Between(lambda x: x[:, [1, 0, 2, 5, 4, 3]]),
    "noise": lambda: Between(lambda x: x + torch.randn_like(x)),
    "steps": Recurrent,
    "attention": lambda: Attention(batch_first=True),
    "a mean that is only kept": lambda: Running("nothing"),
}  # fmt: skip


def plan_of(graph: Graph, micro_batches: int) -> Plan:
    last = len(graph.layers) - 1
    return Plan(
        strategy="by hand", model=graph.name, batch=8, mode="train", source="a", fleet=FLEET,
        shards=(Shard("a", (0, 0)), Shard("b", (1, last))), micro_batches=micro_batches,
        profile=derive_profile(graph, FLEET),
    )  # fmt: skip


@pytest.mark.parametrize("name", MEETING)
def test_a_plan_of_pieces_is_refused_where_samples_meet(name: str) -> None:
    torch.manual_seed(0)
    module = MEETING[name]()
    graph = capture(module, torch.randn(2, 6), mode="train")
    graph = capture_loss(graph, nn.MSELoss(), torch.randn(2, *module(torch.randn(2, 6)).shape[1:]))
    assert graph.mixes
    whole, pieces = plan_of(graph, 1), plan_of(graph, 4)
    check_loss(graph, whole)
    assert differs(whole, graph) == ""
    assert differs(pieces, graph).endswith("samples that meet only in their piece")
    with pytest.raises(
        InputError, match=r"depends on the other samples of its minibatch .*pieces of 2"
    ):
        check_loss(graph, pieces)


@pytest.mark.parametrize(
    "name", [name for name in MEETING if name != "gradients by the frequency of words"]
)
def test_answers_in_pieces_are_refused_where_samples_meet(name: str) -> None:
    torch.manual_seed(0)
    graph = capture(MEETING[name](), torch.randn(2, 6), mode="infer")
    whole, pieces = (
        msgspec.structs.replace(plan_of(graph, count), mode="infer") for count in (1, 4)
    )
    check_outputs(graph, whole)
    assert differs(whole, graph) == ""
    assert "samples that meet only in their piece" in differs(pieces, graph)
    with pytest.raises(
        InputError, match=r"depends on the other samples of its batch .*micro_batches=1"
    ):
        check_outputs(graph, pieces)


class Counting(nn.Module):
    """Answers with the number of batches so far."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        result: Tensor = self.last(self.first(x)) * self.calls
        return result


def test_answers_in_pieces_are_refused_where_each_batch_changes_a_buffer() -> None:
    graph = capture(Counting(), torch.randn(2, 6), mode="infer")
    assert graph.mixes == ""
    whole, pieces = (
        msgspec.structs.replace(plan_of(graph, count), mode="infer") for count in (1, 4)
    )
    check_outputs(graph, whole)
    with pytest.raises(InputError, match=r"changes calls with every batch .*micro_batches=1"):
        check_outputs(graph, pieces)


@pytest.mark.parametrize("name", ALONE)
def test_a_network_that_computes_each_sample_for_itself_may_be_cut(name: str) -> None:
    torch.manual_seed(0)
    assert capture(ALONE[name](), torch.randn(2, 6), mode="train").mixes == ""


def test_a_batch_norm_without_running_statistics_answers_with_those_of_its_samples() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    module, x = nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 2)).eval(), torch.randn(5, 6)
    graph = capture(module, x[:2], mode="infer")
    runner = Runner(graph.segment(0, len(graph.layers) - 1), state_of(module))
    assert torch.allclose(runner.forward({graph.inputs[0]: x})[graph.output], module(x))
