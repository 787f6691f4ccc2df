"""coopai+ plans every kind of network: squeeze-and-excite, dense connections, encoders with skips."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.strategies.unet import UNet
from weft.api import plan
from weft.fleet.fleet import Device, Fleet, Medium
from weft.plans.plan import Plan
from weft.strategies.coopai.book import DEEP, SHORTEST, longest_block


class SqueezeExcite(nn.Module):
    """Channels of a map are weighed by what a small network makes of their means."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, 4, 1)
        self.up = nn.Conv2d(4, channels, 1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.last = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        weights = functional.adaptive_avg_pool2d(x, 1)
        x = x * torch.sigmoid(self.up(torch.relu(self.down(weights))))
        y: Tensor = self.last(torch.relu(self.second(x)).mean((2, 3)))
        return y


class Dense(nn.Module):
    """Every layer reads what all layers before it made."""

    def __init__(self, layers: int = 60, growth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(3 + growth * n, growth, 3, padding=1) for n in range(layers)
        )
        self.last = nn.Conv2d(3 + growth * layers, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        made = [x]
        for layer in self.layers:
            made.append(torch.relu(layer(torch.cat(made, 1))))
        y: Tensor = self.last(torch.cat(made, 1))
        return y


def cell(count: int, mbps: float) -> Fleet:
    names = tuple(f"r{n}" for n in range(1, count + 1))
    devices = (Device("gw", "edge", 1.0, data=True), *(Device(name, gflops=1.0) for name in names))
    return Fleet(devices, medium=(Medium("wifi", "gw", names, mbps),))


def planned(model: nn.Module, size: int, strategy: str, mbps: float, **options: object) -> Plan:
    given = {key: str(value) for key, value in options.items()}
    return plan(
        model.eval(), torch.zeros(1, 3, size, size), cell(3, mbps), strategy=strategy, mode="infer",
        options=given,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "size"),
    [(SqueezeExcite(), 32), (Dense(12), 16), (UNet(8, 3), 32)],
    ids=["squeeze-excite", "dense", "u-net"],
)
def test_it_has_a_plan_that_is_not_slower_than_coopai_s(model: nn.Module, size: int) -> None:
    for mbps in (5.0, 500.0):
        for number in ({}, {"devices": 3}):
            more = {"gateway": "off"} if number else {}
            plus = planned(model, size, "coopai+", mbps, polish=20, **number, **more)
            plain = planned(model, size, "coopai", mbps, **number)
            assert plus.predicted is not None
            assert plain.predicted is not None
            assert plus.predicted.seconds <= plain.predicted.seconds * (1 + 1e-9)


@pytest.mark.proof
def test_in_a_deep_network_blocks_are_shorter_and_the_plan_still_comes() -> None:
    made = planned(Dense(60), 16, "coopai+", 2000.0, gateway="off", polish=5)
    lengths = [last - first + 1 for first, last in made.decisions["blocks"]]
    assert sum(lengths) == 61 > DEEP
    assert all(n <= longest_block(61) for n in lengths[:-1])


def test_the_number_of_blocks_grows_with_the_layers_and_no_faster() -> None:
    assert [longest_block(n) for n in (1, 16, DEEP)] == [1, 16, DEEP]
    assert all(SHORTEST <= longest_block(n) <= DEEP for n in range(DEEP + 1, 1000))
    assert max(n * longest_block(n) for n in range(DEEP + 1, 134)) <= DEEP * DEEP
    assert longest_block(1000) == SHORTEST
