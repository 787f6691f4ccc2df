"""Everything on one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Device, Fleet, Link
from weft.plans.plan import Shard
from weft.plans.registry import make_plan
from weft.plans.task import Task


@pytest.mark.parametrize(
    ("strategy", "worker"), [("all-device", "pi"), ("all-edge", "nuc"), ("all-cloud", "cloud")]
)
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_all_layers_are_on_the_device_of_the_tier(
    make_task: Callable[..., Task], strategy: str, worker: str, mode: str
) -> None:
    plan = make_plan(strategy, make_task(mode=mode, codec="fp16", route="store_and_forward"))
    assert plan.strategy == strategy
    assert plan.shards == (Shard(worker, (0, 3)),)
    assert (plan.source, plan.mode, plan.batch) == ("pi", mode, 8)
    assert (plan.codec, plan.route) == ("fp16", "store_and_forward")
    assert (plan.micro_batches, plan.in_flight) == (1, 1)
    assert plan.decisions == {"devices": [worker], "cuts": []}


def test_micro_batches_make_the_pipelined_variant(make_task: Callable[..., Task]) -> None:
    plan = make_plan("all-cloud", make_task(micro_batches="4"))
    assert (plan.micro_batches, plan.in_flight) == (4, 4)


def test_the_fastest_of_a_tier_is_taken_among_those_in_reach(
    make_task: Callable[..., Task],
) -> None:
    fleet = Fleet(
        tuple(Device(name, "edge") for name in ("slow", "fast", "far")),
        (Link(("slow", "fast"), 1, 1),),
    )
    task = make_task(fleet=fleet, speeds={"fast": 2, "far": 3}, source="slow")
    assert make_plan("all-edge", task).decisions["devices"] == ["fast"]


def test_the_device_with_the_data_is_its_own_device(make_task: Callable[..., Task]) -> None:
    fleet = Fleet((Device("pi"), Device("quick")), (Link(("pi", "quick"), 1, 1),))
    task = make_task(fleet=fleet, speeds={"quick": 9})
    assert make_plan("all-device", task).decisions["devices"] == ["pi"]


def test_a_missing_tier_is_said(make_task: Callable[..., Task]) -> None:
    task = make_task(fleet=Fleet((Device("pi"),)))
    with pytest.raises(InputError, match=r"all-cloud needs .* tier 'cloud'.* pi \(device\)"):
        make_plan("all-cloud", task)


def test_a_tier_out_of_reach_is_no_route(make_task: Callable[..., Task]) -> None:
    task = make_task(fleet=Fleet((Device("pi"), Device("nuc", "edge"))))
    with pytest.raises(WeftError, match="no route from 'pi' to 'nuc'"):
        make_plan("all-edge", task)
