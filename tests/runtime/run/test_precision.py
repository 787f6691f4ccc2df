"""A run with `precision="bf16"` on real processes equals one process with rounded products."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.errors import InputError
from weft.graph.precision import has_bf16
from weft.reference.mixed_precision import bf16_products

FLEET = weft.Fleet.load("examples/fleets/demo.toml")
STEPS = 4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3)
    )


def minibatch(number: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(number)
    return torch.rand(8, 8, generator=draw), torch.randint(0, 3, (8,), generator=draw)


@pytest.mark.skipif(not has_bf16(), reason="this processor has no bfloat16 instructions")
def test_a_split_run_equals_one_process() -> None:
    eager, loss = network(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(eager.parameters(), 0.1)
    wanted = []
    for step in range(STEPS):
        x, y = minibatch(step)
        optimizer.zero_grad()
        with bf16_products():
            value = loss(eager(x), y)
        value.backward()
        optimizer.step()
        wanted.append(value.item())
    devices = ",".join(FLEET.names)
    result = weft.train(
        copy.deepcopy(network()), minibatch, loss, fleet=FLEET, strategy="chain", steps=STEPS,
        batch=8, lr=0.1, local=True, precision="bf16",
        options={"devices": devices, "micro_batches": 1},
    )  # fmt: skip
    assert list(result.losses) == pytest.approx(wanted, abs=1e-6)
    assert all(p.dtype == torch.float32 for p in result.model.parameters())


@pytest.mark.parametrize("strategy", ["decoupled", "stitchnet"])
def test_layers_that_are_taken_apart_are_refused(strategy: str) -> None:
    with pytest.raises(InputError, match="precision bf16 is for plans of whole layers"):
        weft.train(network(), minibatch, nn.CrossEntropyLoss(), fleet=FLEET, strategy=strategy, steps=1,
                   batch=8, local=True, precision="bf16")  # fmt: skip
