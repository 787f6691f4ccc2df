"""A script of faults happens to a real run on emulated devices, and the run gets over it."""

from __future__ import annotations

import copy

import msgspec
import pytest
import torch
from torch import Tensor, nn

import weft
from weft.chaos.fleets import TIERS
from weft.errors import InputError
from weft.fleet.faults import Faults, Kind
from weft.fleet.fleet import Fleet
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.plan import Shard
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
    devices = tuple(
        msgspec.structs.replace(d, gflops=(d.gflops or 1.0) / times) for d in fleet.devices
    )
    return Fleet(devices, fleet.link)


def train(script: Faults, steps: int, deadline: float = 30.0) -> TrainResult:
    """Each of three devices has a layer; the fourth has none at first."""
    fleet = slower(TIERS, 20)
    plan = weft.plan(net(), X[:2], fleet, strategy="chain", batch=8, optimizer=RULE.name)
    layers = len(plan.profile.layers)
    shards = (Shard("pi", (0, 0)), Shard("nuc", (1, 1)), Shard("cloud", (2, layers - 1)))
    return weft.train(
        net(), pairs, nn.CrossEntropyLoss(), plan=msgspec.structs.replace(plan, shards=shards),
        steps=steps, optimizer=RULE, local=True, keep_every=5, faults=script, deadline=deadline,
    )  # fmt: skip


@pytest.mark.proof
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


@pytest.mark.proof
def test_a_link_that_is_cut_for_good_costs_a_device_and_not_the_run() -> None:
    """Both ends send heartbeats and wait for each other. Such a run ended after the deadline."""
    result = train(Faults().cut("pi", "nuc", step=10), steps=30, deadline=4.0)
    (lost,) = (event for event in result.events if event["kind"] == "device_lost")
    assert lost["device"] == "nuc"
    assert "nuc is slow: it sends heartbeats" in lost["why"]
    assert len(result.losses) == 30
    for name, tensor in alone(30).items():
        assert torch.allclose(result.model.state_dict()[name], tensor, atol=1e-6), name


def test_a_script_needs_an_emulated_fleet_and_devices_that_exist() -> None:
    with pytest.raises(InputError, match="emulated fleet"):
        weft.train(net(), pairs, nn.CrossEntropyLoss(), fleet=TIERS, strategy="chain", steps=5,
                   batch=8, join="tcp/127.0.0.1:9", faults=Faults().kill("nuc"))  # fmt: skip
    with pytest.raises(InputError, match="'nobody' is unknown"):
        weft.train(net(), pairs, nn.CrossEntropyLoss(), fleet=TIERS, strategy="chain", steps=5,
                   batch=8, local=True, faults=Faults().kill("nobody"))  # fmt: skip
