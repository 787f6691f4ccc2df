"""A plan says what it computes that one process would not."""

from __future__ import annotations

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.capture.module import capture
from weft.planning.decide import decide
from weft.planning.exactness import differs
from weft.planning.task import make_task
from weft.plans.derive import derive_profile

FLEET = Fleet(
    (Device("a", gflops=1.0, data=True), Device("b", gflops=1.0)), (Link(("a", "b"), 1e3, 1e3),)
)


class Centred(nn.Module):
    """Takes the mean of the minibatches before off its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        result: Tensor = self.last(x - self.mean)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return result


class CentredByItself(Centred):
    """The samples at hand count too: those of another piece do not."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        result: Tensor = self.last(x - self.mean)
        return result


def test_buffers_that_each_piece_changes_are_a_difference_only_where_there_are_pieces() -> None:
    graph = capture(Centred(), torch.zeros(2, 4), mode="train")
    task = make_task(derive_profile(graph, FLEET), FLEET, batch=8, graph=graph)
    whole = replace(decide("chain", task), micro_batches=1)
    assert differs(whole, graph) == ""
    assert differs(replace(whole, micro_batches=4), graph) == "buffers changed by each piece"


def test_samples_that_meet_in_a_buffer_are_a_difference_too() -> None:
    torch.manual_seed(0)
    graph = capture(CentredByItself(), torch.randn(2, 4), mode="train")
    task = make_task(derive_profile(graph, FLEET), FLEET, batch=8, graph=graph)
    whole = replace(decide("chain", task), micro_batches=1)
    assert differs(whole, graph) == ""
    words = differs(replace(whole, micro_batches=4), graph)
    assert words == "buffers changed by each piece, samples that meet only in their piece"
