"""A script of faults happens to a real run on emulated devices, and the run gets over it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.chaos.fleets import TIERS
from weft.errors import InputError
from weft.fleet.faults import Faults, Kind
from weft.fleet.fleet import Fleet
from weft.graph.optimizer import Optimizer
from weft.runtime.run.results import TrainResult

RULE = Optimizer("momentum", 0.02)
X, Y = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)
    )


def pairs(step: int) -> tuple[Tensor, Tensor]:
    rows = torch.arange(step * 8, step * 8 + 8) % 64
    return X[rows], Y[rows]


def alone(steps: int) -> dict[str, Tensor]:
    module = copy.deepcopy(net()).train()
    optimizer = RULE.build(list(module.parameters()))
    for step in range(steps):
        x, y = pairs(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module.state_dict()


def slower(fleet: Fleet, times: float) -> Fleet:
    """This network is small: a step takes some 10 ms on devices that are so much slower."""
    import msgspec

    devices = tuple(
        msgspec.structs.replace(d, gflops=(d.gflops or 1.0) / times) for d in fleet.devices
    )
    return Fleet(devices, fleet.link)


def train(script: Faults, steps: int) -> TrainResult:
    return weft.train(
        net(), pairs, nn.CrossEntropyLoss(), fleet=slower(TIERS, 20), strategy="chain", steps=steps,
        batch=8, optimizer=RULE, local=True, keep_every=5, faults=script,
        options={"devices": "pi,nuc,cloud"},
    )  # fmt: skip


def test_two_devices_that_die_together_are_both_noted_and_both_taken_back() -> None:
    """The second one was forgotten once: it came back, and never got a part again."""
    script = Faults().kill("nuc", step=10).kill("cloud", step=10)
    script = script.restart("nuc", after_s=0.3).restart("cloud", after_s=0.3)
    result = train(script.cut("pi", "box", step=20, for_s=0.3), steps=160)
    assert [f.kind for f in result.faults].count(Kind.kill) == 2
    noted = {kind: {e["device"] for e in result.events if e["kind"] == kind}
             for kind in ("device_lost", "device_joined")}  # fmt: skip
    assert noted == {"device_lost": {"nuc", "cloud"}, "device_joined": {"nuc", "cloud"}}
    assert all(f.recovered_s is not None for f in result.faults if f.had_part)
    assert len(result.losses) == 160  # none is missing, none is counted twice
    for name, tensor in alone(160).items():
        assert torch.allclose(result.model.state_dict()[name], tensor, atol=1e-6), name


def test_a_script_needs_an_emulated_fleet_and_devices_that_exist() -> None:
    with pytest.raises(InputError, match="emulated fleet"):
        weft.train(net(), pairs, nn.CrossEntropyLoss(), fleet=TIERS, strategy="chain", steps=5,
                   batch=8, join="tcp/127.0.0.1:9", faults=Faults().kill("nuc"))  # fmt: skip
    with pytest.raises(InputError, match="'nobody' is unknown"):
        weft.train(net(), pairs, nn.CrossEntropyLoss(), fleet=TIERS, strategy="chain", steps=5,
                   batch=8, local=True, faults=Faults().kill("nobody"))  # fmt: skip
