"""Strategies of peers: plans that can be priced, lowered, saved, and compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Medium
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.peers import SHARED
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.task import Task
from weft.program.lower.lower import lower
from weft.program.validate import check_flow
from weft.simulate.price import price

SPEEDS = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 10.0}  # seconds per second


def task(**options: object) -> Task:
    """Six layers, the last ten numbers wide; four devices, the last ten times slower."""
    convolutions = (LayerCost(f"conv{n}", 4000, 4000, 1e6, 4000) for n in range(1, 6))
    layers = (*convolutions, LayerCost("fc", 400, 40, 1e3, 40))
    times = DeviceTimes((0.001,) * 6, (0.002,) * 6, (0.0,) * 6)
    fleet = Fleet(
        tuple(Device(n, data=n == "a") for n in SPEEDS),
        medium=(Medium("air", "a", ("b", "c", "d"), 80.0),),
    )
    profile = Profile("net", 400, layers, {n: times.scaled(s) for n, s in SPEEDS.items()})
    return make_task(profile, fleet, batch=4, options={"steps": 5, **options})


@pytest.mark.parametrize("strategy", ["decoupled", "decoupled+", "fedavg"])
def test_a_plan_of_peers_is_priced_saved_and_lowered_again(strategy: str, tmp_path: Path) -> None:
    plan = decide(strategy, task())
    assert plan.predicted is not None
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    check_flow(lower(again))
    assert price(again) == plan.predicted
    assert {label for shard in plan.shards for label in shard.part.classes or ()} == set(range(10))


def test_those_who_wait_go_as_fast_as_the_slowest_and_the_others_as_half_of_them() -> None:
    waits, free = (decide(s, task(classes="0,1,2/2,3,4/4,5,6/6,7,8,9,0")) for s in
                   ("decoupled", "decoupled+"))  # fmt: skip
    assert waits.predicted is not None
    assert free.predicted is not None
    own = waits.predicted.compute_s
    assert waits.predicted.seconds >= own["d"]
    assert free.predicted.seconds == sorted(free.predicted.compute_s.values())[1] <= 2 * own["a"]


def test_a_sub_model_computes_less_than_the_whole_network() -> None:
    whole, part = (decide(s, task(classes="0,1/2,3/4,5/6,7,8,9")) for s in
                   ("fedavg", "decoupled"))  # fmt: skip
    assert whole.predicted is not None
    assert part.predicted is not None
    assert part.predicted.compute_s["a"] < whole.predicted.compute_s["a"]
    assert part.predicted.memory_bytes["a"] < whole.predicted.memory_bytes["a"]
    assert whole.peers is not None
    assert [held.group for held in whole.peers.peer("a").held] == [SHARED]


def test_decoupled_plus_keeps_the_network_whole_where_taken_apart_it_computes_more() -> None:
    """A class keeps at least one filter: ten classes had ten where the network has four."""
    convolutions = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)]
    narrow = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    def planned(strategy: str, **options: object) -> Plan:
        fleet = Fleet((Device("a", gflops=1.0),))
        plan = weft.plan(narrow, torch.zeros(2, 4, 8, 8), fleet, strategy=strategy, options=options)
        assert plan.predicted is not None
        assert plan.peers is not None
        return plan

    kept, whole = planned("decoupled+"), planned("fedavg")
    assert kept.predicted is not None
    assert whole.predicted is not None
    assert kept.peers is not None
    assert kept.predicted.seconds <= whole.predicted.seconds
    assert not kept.peers.structured
    assert [held.group for held in kept.peers.peers[0].held] == [SHARED]
    # who says how it is to be taken apart, or prefers accuracy, gets structures
    for options in ({"filters": 30}, {"last": 1}, {"prefer": "accuracy"}):
        asked = planned("decoupled+", **options).peers
        assert asked is not None
        assert asked.structured


def test_half_precision_halves_what_is_exchanged() -> None:
    sizes = []
    for codec in ("none", "fp16"):
        plan = decide("decoupled+", task(codec=codec))
        assert plan.predicted is not None
        sizes.append(plan.predicted.transfer_bytes["air"])
    assert sizes[1] == pytest.approx(sizes[0] / 2, abs=2)


@pytest.mark.parametrize(
    ("strategy", "options", "words"),
    [
        ("decoupled+", {"shared": "ring"}, "shared=ring is not allowed"),
        ("decoupled", {"shared": "star"}, "one of ring, gossip, hub"),
        ("decoupled", {"topology": "0-1"}, "not one graph"),
        ("fedavg", {"steps": "0"}, "steps=0 is not allowed"),
        ("fedavg", {"last": "0"}, "last=0 is not allowed"),
        ("fedavg", {"last": "7"}, "from 1 up to 6"),
        ("fedavg", {"filters": "ten"}, "filters=ten is not allowed"),
        ("fedavg", {"filters": "10,19", "last": "3"}, "one whole number, or 3 with commas"),
    ],
)
def test_options_that_cannot_be_are_refused_also_where_they_are_not_used(
    strategy: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        decide(strategy, task(**options))


def test_options_that_fedavg_does_not_use_change_nothing() -> None:
    asked = decide("fedavg", task(filters="10,19", last=2))
    assert asked.peers == decide("fedavg", task()).peers


@pytest.mark.parametrize("strategy", ["decoupled", "decoupled+"])
def test_a_network_of_one_layer_cannot_be_decoupled(strategy: str) -> None:
    times = {n: DeviceTimes((0.1,), (0.1,), (0.0,)) for n in SPEEDS}
    profile = Profile("net", 400, (LayerCost("fc", 400, 40, 1e3, 40),), times)
    one = make_task(profile, task().fleet, batch=4)
    with pytest.raises(InputError, match="net has only one layer"):
        decide(strategy, one)
    assert decide("fedavg", one).predicted is not None
