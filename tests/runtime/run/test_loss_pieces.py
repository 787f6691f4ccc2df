"""A loss with class weights and ignored targets trains as in one process, however samples are cut up."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.data import batch_indices, load
from weft.fleet.fleet import Device, Fleet, Link
from weft.program.instructions import Loss, Send
from weft.program.lower.lower import lower

FLEET = Fleet(
    (Device("pi", gflops=1.0, data=True), Device("nuc", "edge", gflops=4.0),
     Device("cloud", "cloud", gflops=9.0)),
    (Link(("pi", "nuc"), 50.0, 50.0, 1.0), Link(("nuc", "cloud"), 50.0, 50.0, 1.0),
     Link(("pi", "cloud"), 50.0, 50.0, 1.0)),
)  # fmt: skip
STEPS, BATCH, RATE = 4, 12, 0.1
LOSS = nn.CrossEntropyLoss(
    weight=torch.tensor([1.0, 0.2, 4.0, 0.7]), ignore_index=-100, label_smoothing=0.1
)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 4))


def minibatch(step: int) -> tuple[Tensor, Tensor]:
    """The first minibatch ignores no target; later ones ignore whole pieces."""
    generator = torch.Generator().manual_seed(step)
    y = torch.randint(0, 4, (BATCH,), generator=generator)
    y[: 4 * step] = -100 if step < 3 else 1
    return torch.randn(BATCH, 6, generator=generator), y


def alone(loss: nn.Module) -> tuple[nn.Module, list[float]]:
    net, losses = network(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for step in range(STEPS):
        x, y = minibatch(step)
        value = loss(net(x), y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return net, losses


def crossed(result: weft.TrainResult) -> dict[str, int]:
    """The bytes of each channel in a run."""
    bytes_of: Counter[str] = Counter()
    for span in result.timeline.spans:
        if span.what == "transfer":
            bytes_of[span.where] += span.bytes
    return dict(bytes_of)


def planned(plan: weft.Plan) -> dict[str, int]:
    """The same as it was planned; the sums over all targets travel with each piece's targets."""
    bytes_of: Counter[str] = Counter()
    for device, code in lower(plan).code.items():
        for send in code:
            if isinstance(send, Send):
                for hop in plan.fleet.route(device, send.dest):
                    bytes_of[hop.channel] += STEPS * send.bytes
    return dict(+bytes_of)


@pytest.mark.parametrize(
    ("strategy", "options", "loss"),
    [
        ("hiertrain", {}, LOSS),
        ("chain", {"devices": "pi,nuc,cloud", "micro_batches": 3}, nn.CrossEntropyLoss()),
    ],
)
def test_a_run_with_cut_minibatches_equals_one_process(
    strategy: str, options: dict[str, Any], loss: nn.Module
) -> None:
    expected, losses = alone(loss)
    result = weft.train(
        network(), minibatch, loss, fleet=FLEET, strategy=strategy, steps=STEPS, batch=BATCH, lr=RATE,
        local=True, options=options,
    )  # fmt: skip
    assert crossed(result) == planned(result.plan)
    pieces = {i.samples for c in lower(result.plan).code.values() for i in c if isinstance(i, Loss)}
    assert max(pieces) < BATCH
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        torch.tensor(result.losses), torch.tensor(losses), rtol=1e-5, atol=1e-6
    )


@pytest.mark.proof
def test_a_device_with_its_own_data_set_sends_the_totals_of_whole_minibatches() -> None:
    weights = torch.arange(1.0, 11.0)
    loss, data = nn.CrossEntropyLoss(weight=weights), load("mnist5k")
    torch.manual_seed(4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Tanh(), nn.Linear(8, 10))
    expected = copy.deepcopy(net)
    optimizer = torch.optim.SGD(expected.parameters(), lr=RATE)
    for step in range(STEPS):
        rows = batch_indices(len(data.train_x), BATCH, step, 0)
        optimizer.zero_grad()
        loss(expected(data.train_x[rows]), data.train_y[rows]).backward()
        optimizer.step()
    result = weft.train(
        net, "mnist5k", loss, fleet=FLEET, strategy="chain", steps=STEPS, batch=BATCH, lr=RATE, local=True,
        options={"devices": "pi,nuc", "micro_batches": 5},
    )  # fmt: skip
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)
