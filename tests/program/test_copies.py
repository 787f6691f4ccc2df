"""The interval between two copies, and the memory that they take."""

from __future__ import annotations

import msgspec
import pytest

from weft.fleet.fleet import Device, Fleet, Link
from weft.plans.plan import Plan, Shard
from weft.program.copies import HELD, copies_of
from weft.report.tables import plan_caption


@pytest.fixture
def plan() -> Plan:
    import torch
    from torch import nn

    import weft

    fleet = Fleet(
        (Device("pi", gflops=1.0, data=True), Device("nuc", "edge", gflops=1.0)),
        (Link(("pi", "nuc"), 100.0, 100.0),),
    )
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return weft.plan(net, torch.zeros(2, 6), fleet, strategy="chain", batch=8,
                     options={"devices": "pi,nuc"})  # fmt: skip


def test_small_networks_are_copied_every_quarter_of_a_second(plan: Plan) -> None:
    assert plan.predicted is not None
    copies, step_s = copies_of(plan), plan.predicted.seconds
    assert (copies.every - 1) * step_s < 0.25 <= copies.every * step_s
    assert copies.repeats_s == pytest.approx(2 * copies.every * step_s)


def test_large_networks_are_copied_so_seldom_that_copies_cost_a_fiftieth(plan: Plan) -> None:
    """A copy of 20 MB took 33 ms of CPU time and was made every 0.7 s: readiness cost 3 to 4%."""
    layer = max(plan.profile.layers, key=lambda layer: layer.param_bytes)
    layers = [
        msgspec.structs.replace(one, param_bytes=20_000_000 if one is layer else 0)
        for one in plan.profile.layers
    ]
    large = msgspec.structs.replace(
        plan, profile=msgspec.structs.replace(plan.profile, layers=tuple(layers))
    )
    assert plan.predicted is not None
    assert copies_of(large).every * plan.predicted.seconds >= 50 * 0.033


def test_both_copies_hold_weights_and_the_optimizers_memory(plan: Plan) -> None:
    weights = sum(layer.param_bytes for layer in plan.profile.layers)
    for optimizer, tensors in (("sgd", 1), ("momentum", 2), ("adam", 3)):
        copies = copies_of(msgspec.structs.replace(plan, optimizer=optimizer))
        assert sum(copies.bytes.values()) == HELD * tensors * weights
        assert copies.bytes.keys() == {"pi", "nuc"}


def test_versions_of_weights_in_flight_belong_to_the_copies(plan: Plan) -> None:
    layers = len(plan.profile.layers)
    shards = (Shard("pi", (0, 0)), Shard("nuc", (1, layers - 1)))
    plain = msgspec.structs.replace(plan, shards=shards)
    ahead = msgspec.structs.replace(plain, stale=3)
    first = plan.profile.layers[0].param_bytes
    assert first > 0
    assert copies_of(ahead).bytes["pi"] == copies_of(plain).bytes["pi"] + HELD * 3 * first
    assert copies_of(ahead).bytes["nuc"] == copies_of(plain).bytes["nuc"]


def test_a_plan_says_where_its_copies_have_no_room(plan: Plan) -> None:
    """Such a plan was said to fit: planners count a device's part alone."""
    assert plan.predicted is not None
    assert copies_of(plan).lacking == {}  # memory_mb is not known

    def limited(spare: int) -> Plan:
        devices = tuple(
            msgspec.structs.replace(d, memory_mb=(plan.predicted.memory_bytes[d.name] + spare) / 1e6)
            if d.name == "nuc" else d for d in plan.fleet.devices
        )  # fmt: skip
        return msgspec.structs.replace(plan, fleet=Fleet(devices, plan.fleet.link))

    needed = copies_of(plan).bytes["nuc"]
    assert copies_of(limited(needed)).lacking == {}
    assert "too little" not in plan_caption(limited(needed))
    assert copies_of(limited(needed - 200)).lacking == {"nuc": 200}
    assert "memory_mb is too small: nuc 200 B too little" in plan_caption(limited(needed - 200))
