"""The strategies coopai and sls: a plan with rounds for the fleet behind a gateway, or a clear error."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.graph.capture.module import capture
from weft.graph.sequence import in_sequence
from weft.planning.decide import decide
from weft.planning.task import ask, make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes
from weft.plans.registry import make_plan
from weft.plans.task import Task
from weft.simulate.price import price
from weft.strategies.coopai.geometry import DenseLayer, geometry_of
from weft.strategies.coopai.sequence import task_in_sequence


def behind_gateway(count: int, mbps: float = 100.0, gflops: float = 13.6) -> Fleet:
    names = tuple(f"rpi{d}" for d in range(1, count + 1))
    return Fleet(
        (Device("gw", "edge", gflops, data=True), *(Device(n, gflops=gflops) for n in names)),
        medium=(Medium("wifi", "gw", names, mbps),),
    )


@cache
def _task(model: str, fleet: Fleet) -> Task:
    return ask(model, fleet, mode="infer")


def task(model: str, fleet: Fleet, **options: Any) -> Task:
    found = _task(model, fleet)
    return dataclasses.replace(found, options={key: str(value) for key, value in options.items()})


def test_vgg16_on_ten_raspberry_pis_is_the_paper_s_plan() -> None:
    plan = make_plan("coopai", task("vgg16", behind_gateway(10)))
    assert plan.decisions["devices"] == 7
    assert plan.decisions["blocks"] == [[0, 6], [7, 9], [10, 13], [14, 15]]
    assert plan.decisions["modes"] == ["rows", "rows", "rows+data", "hybrid"]
    assert plan.decisions["model_s"] == pytest.approx(0.92288, abs=1e-5)
    assert plan.layering == "sequence"
    assert plan.source == "gw"
    assert [r.layers for r in plan.rounds] == [(0, 6), (7, 9), (10, 13), (14, 15)]
    assert {turn.device for r in plan.rounds for turn in r.turns} == {
        f"rpi{d}" for d in range(1, 8)
    }
    assert set(plan.decisions["model_s_by_devices"]) == {str(k) for k in range(1, 11)}


def test_sls_gives_every_layer_a_round_of_its_own() -> None:
    plan = make_plan("sls", task("vgg16", behind_gateway(10)))
    assert plan.decisions["devices"] == 3
    assert plan.decisions["blocks"] == [[layer, layer] for layer in range(16)]


def test_a_plan_is_json_both_ways_and_has_a_price() -> None:
    plan = decide("coopai", task("vgg-small", behind_gateway(3, mbps=1000), devices=3))
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    assert plan.predicted is not None
    assert plan.predicted.latency_s is not None


def test_the_number_of_devices_can_be_fixed() -> None:
    plan = make_plan("coopai", task("vgg-small", behind_gateway(5), devices=2))
    assert plan.decisions["devices"] == 2


def test_one_device_computes_everything_as_a_whole() -> None:
    for fleet, options in ((behind_gateway(1), {}), (behind_gateway(4), {"devices": 1})):
        plan = make_plan("coopai", task("vgg-small", fleet, **options))
        assert plan.decisions["modes"] == ["whole"]
        assert plan.decisions["blocks"] == [[0, 5]]
        assert [shard.device for shard in plan.shards] == ["rpi1"]


def test_more_devices_than_rows_are_refused_if_asked_for_and_never_chosen() -> None:
    fleet = behind_gateway(10, mbps=1e6)  # sending costs nothing, so more devices always pay
    with pytest.raises(InputError, match="use at most"):
        make_plan("coopai", task("vgg-small", fleet, devices=10))
    assert make_plan("coopai", task("vgg-small", fleet)).decisions["devices"] <= 7


def test_the_fastest_devices_are_taken_and_the_slowest_counts() -> None:
    fleet = behind_gateway(3)
    slow = msgspec.structs.replace(fleet.devices[1], gflops=1.36)
    unequal = Fleet((fleet.devices[0], slow, *fleet.devices[2:]), medium=fleet.medium)
    plan = make_plan("coopai", task("vgg-small", unequal, devices=2))
    assert {turn.device for r in plan.rounds for turn in r.turns} == {"rpi2", "rpi3"}
    slower = make_plan("coopai", task("vgg-small", behind_gateway(3, gflops=1.36), devices=2))
    assert plan.decisions["model_s"] == pytest.approx(slower.decisions["model_s"])


def test_a_batch_takes_as_often_as_long() -> None:
    one = task("vgg-small", behind_gateway(3), devices=2)
    four = dataclasses.replace(one, batch=4)
    assert make_plan("coopai", four).decisions["model_s"] == pytest.approx(
        4 * make_plan("coopai", one).decisions["model_s"]
    )


def test_residual_networks_can_be_planned_too() -> None:
    for model in ("resnet8", "resnet18"):
        plan = make_plan("coopai", task(model, behind_gateway(4, mbps=1000), devices=4))
        assert len(plan.decisions["blocks"]) < len(plan.profile.layers)


@pytest.mark.parametrize(
    ("fleet", "reason"),
    [
        (Fleet((Device("gw", gflops=1.0), Device("a", gflops=1.0)), (Link(("gw", "a"), 1, 1),)),
         "needs a \\[\\[medium\\]\\] whose gateway is 'gw'.*media are: none"),
        (Fleet((Device("a", gflops=1.0, data=True), Device("gw", gflops=1.0)),
               medium=(Medium("wifi", "gw", ("a",), 1.0),)),
         "whose gateway is 'a'.*wifi \\(gateway gw\\)"),
        (Fleet((Device("gw", gflops=1.0),), medium=(Medium("wifi", "gw", (), 1.0),)),
         "members = \\[\\].*at least one device"),
    ],
)  # fmt: skip
def test_a_fleet_without_a_gateway_that_asks_is_refused(fleet: Fleet, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        make_plan("coopai", task("lenet5", fleet))


def test_networks_without_rows_and_profiles_without_network_are_refused() -> None:
    with pytest.raises(InputError, match="mlp has no layer that can be cut by rows"):
        make_plan("coopai", task("mlp", behind_gateway(2)))
    bare = dataclasses.replace(task("lenet5", behind_gateway(2)), graph=None)
    with pytest.raises(InputError, match="coopai needs the network itself, not only a profile"):
        make_plan("coopai", bare)
    with pytest.raises(InputError, match="sls needs the network itself"):
        make_plan("sls", bare)


def test_training_is_refused() -> None:
    train = dataclasses.replace(task("lenet5", behind_gateway(2)), mode="train")
    with pytest.raises(InputError, match="coopai is for infer, not for train"):
        make_plan("coopai", train)


def test_measured_times_of_layers_that_fall_apart_are_shared_out_by_flops() -> None:
    """ResNet's shortcut convolutions lie in the depth layers of their blocks."""
    fleet = behind_gateway(2)
    old = task("resnet8", fleet)
    times = DeviceTimes(*(tuple(float(m + 1) for m in range(len(old.profile.layers))),) * 3)
    measured = dataclasses.replace(
        old,
        profile=msgspec.structs.replace(old.profile, devices=dict.fromkeys(fleet.names, times)),
    )
    new = task_in_sequence(measured)
    assert new.graph is not None
    assert len(new.profile.layers) == len(new.graph.layers) == 10
    assert len(old.profile.layers) < 10
    for name in fleet.names:
        shared = new.profile.devices[name]
        assert sum(shared.forward_s) == pytest.approx(sum(times.forward_s))
        assert min(shared.forward_s) > 0


def test_derived_times_in_sequence_are_those_of_the_sequence() -> None:
    fleet = behind_gateway(2)
    for model in ("resnet8", "vgg-small"):
        new = task_in_sequence(task(model, fleet))
        assert new.graph is not None
        derived = derive_profile(new.graph, fleet)
        assert new.profile.layers == derived.layers
        for ours, theirs in zip(
            new.profile.devices["gw"].forward_s, derived.devices["gw"].forward_s, strict=True
        ):
            assert ours == pytest.approx(theirs)


def test_the_projection_of_torch_s_attention_is_no_fully_connected_layer_on_a_vector() -> None:
    """Its rows are tokens of all samples: cut as a vector, most of them never reached the gateway."""
    attention = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Flatten(2), attention)
    graph = in_sequence(capture(model, torch.zeros(2, 3, 4, 4), name="attention"))
    layers = geometry_of(graph).layers
    assert not any(isinstance(layer, DenseLayer) for layer in layers)
    fleet = behind_gateway(2)
    asked = make_task(derive_profile(graph, fleet), fleet, mode="infer", batch=2, graph=graph)
    plan = make_plan("coopai", dataclasses.replace(asked, options={"devices": "2"}))
    assert price(plan).seconds > 0
