"""A weight that distant layers share is trained as in one process: in stages, micro-batches and lanes."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.network import Graph
from weft.graph.optimizers.optimizer import Optimizer
from weft.loom.woven import execute
from weft.plans.derive import derive_profile
from weft.plans.plan import Part, Plan, Shard
from weft.program.lower.lower import lower
from weft.program.validate import validate

BATCH, STEPS, RATE = 8, 3, 0.1
FLEET = Fleet(
    (Device("a", gflops=1.0, data=True), Device("b", gflops=2.0), Device("c", gflops=4.0)),
    tuple(Link(pair, 20.0, 20.0, 1.0) for pair in (("a", "b"), ("a", "c"), ("b", "c"))),
)


class Words(nn.Module):
    """The head of the network is its embedding, and one table is added in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(11, 6), nn.Parameter(torch.randn(5, 6))
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x) + self.places
        return nn.functional.linear(self.body(h) + self.places, self.table.weight)


def _shards(*parts: tuple[str, int, int], part: Part | None = None) -> tuple[Shard, ...]:
    return tuple(Shard(device, (first, last), part or Part()) for device, first, last in parts)


PLANS = {
    "stages": ({}, _shards(("a", 0, 0), ("b", 1, 1), ("c", 2, 3))),
    "micro-batches": (
        {"micro_batches": 4, "in_flight": 2},
        _shards(("a", 0, 1), ("b", 2, 2), ("c", 3, 3)),
    ),
    "lanes": (
        {},
        (
            *_shards(("a", 0, 1), ("c", 2, 3), part=Part(3, 0)),
            *_shards(("b", 0, 2), ("c", 3, 3), part=Part(2, 3)),
            *_shards(("c", 0, 3), part=Part(3, 5)),
        ),
    ),
}


@cache
def words() -> tuple[Words, Tensor, Tensor, Graph]:
    """The network, a minibatch, and the graph with its loss."""
    torch.manual_seed(0)
    module = Words()
    x, y = torch.randint(0, 11, (BATCH, 5)), torch.randint(0, 11, (BATCH, 5))
    return module, x, y, capture_loss(capture(module, x, mode="train"), _loss, y)


@pytest.mark.parametrize("optimizer", ["sgd", "sgd clip"])
@pytest.mark.parametrize("kind", PLANS)
def test_a_shared_weight_is_trained_as_in_one_process(kind: str, optimizer: str) -> None:
    module, x, y, graph = words()
    assert len(graph.layers) == 4
    settings, shards = PLANS[kind]
    plan = Plan(
        strategy="by hand", model="words", batch=BATCH, mode="train", shards=shards, source="a",
        fleet=FLEET, profile=derive_profile(graph, FLEET), optimizer=optimizer, **settings,
    )  # fmt: skip
    program = lower(plan)
    validate(program)
    clip = {"clip_norm": 0.5} if "clip" in optimizer else {}
    rule = Optimizer("sgd", RATE, **clip)
    result = execute(program, graph, state_of(module), lambda _: (x, y), STEPS, rule)
    assert not result.odd_bytes
    assert not result.unequal
    reference = copy.deepcopy(module)
    stepper = torch.optim.SGD(reference.parameters(), RATE)
    for step in range(STEPS):
        stepper.zero_grad()
        loss = _loss(reference(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        stepper.step()
        assert result.losses[step] == pytest.approx(loss.item(), abs=1e-6)
    for name, tensor in reference.named_parameters():
        assert torch.allclose(result.state[name], tensor, atol=1e-6), name


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
