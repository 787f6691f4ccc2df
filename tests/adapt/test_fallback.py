"""A device that a strategy cannot do without dies: another strategy takes its place, nothing is lost."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft import zoo
from weft.commands.demo import FLEET
from weft.data import batch_indices
from weft.fleet.parse import parse_fleet
from weft.graph.optimizers.optimizer import Optimizer
from weft.runtime.emulate.local import LocalFleet

STEPS, BATCH, SEED = 40, 16, 3
EXACT = {"codecs": "none", "input_codec": "none"}
RULE = Optimizer("momentum", 0.02)
X = torch.randn(160, 1, 28, 28, generator=torch.Generator().manual_seed(0))
Y = torch.arange(160) % 10


def alone(model: nn.Module) -> dict[str, Tensor]:
    module = copy.deepcopy(model).train()
    optimizer = RULE.build(list(module.parameters()))
    for step in range(STEPS):
        rows = batch_indices(len(X), BATCH, step, SEED)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(X[rows]), Y[rows]).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


@pytest.mark.proof
def test_hiertrain_plus_gives_way_when_its_edge_device_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[LocalFleet] = []
    enter = LocalFleet.__enter__

    def entered(self: LocalFleet) -> LocalFleet:
        opened.append(self)
        return enter(self)

    monkeypatch.setattr(LocalFleet, "__enter__", entered)
    killed: list[int] = []

    def kill(step: Any) -> None:
        if step.done >= 10 and not killed:
            killed.append(step.done)
            opened[0].kill("nuc")

    torch.manual_seed(0)
    model = zoo.build("lenet5")
    expected = alone(model)
    result = weft.train(
        model, (X, Y), nn.CrossEntropyLoss(), fleet=parse_fleet(FLEET, "demo"),
        strategy="hiertrain+", steps=STEPS, batch=BATCH, optimizer=RULE, seed=SEED, local=True,
        adapt=True, keep_every=5, on_progress=kill, options=EXACT,
    )  # fmt: skip
    assert killed
    kinds = [event["kind"] for event in result.events]
    assert "device_lost" in kinds
    recovered = next(event for event in result.events if event["kind"] == "recovered")
    assert "nuc" in recovered["why"]
    assert "hiertrain+ cannot plan without it, chain can" in recovered["why"]
    assert "nuc" not in result.plan.devices
    assert len(result.losses) == STEPS
    for name, tensor in expected.items():
        torch.testing.assert_close(result.model.state_dict()[name], tensor, rtol=0, atol=1e-4)
