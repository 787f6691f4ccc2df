"""A plan that proves slow is priced again with what was measured, and changed; a change may be taken back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from weft.adapt.history import History, same_plan
from weft.adapt.replan import Replanning
from weft.adapt.reprice import repriced
from weft.adapt.steer import View
from weft.adapt.watch import Watch
from weft.fleet.fleet import Device, Fleet, Link
from weft.planning.decide import decide
from weft.planning.one_place import one_places
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan, Shard
from weft.plans.task import Task
from weft.simulate.price import price, priced

Subject = Any
NAMES = ("a", "b", "c")
FLEET = Fleet(
    tuple(Device(name, gflops=0.05, data=name == "a") for name in NAMES),
    tuple(Link(pair, 1e4, 1e4) for pair in (("a", "b"), ("a", "c"), ("b", "c"))),
)


@pytest.fixture
def task(subject: Subject) -> Task:
    return make_task(derive_profile(subject.graph, FLEET), FLEET, batch=32, source="a")


@pytest.fixture
def split(task: Task) -> Plan:
    """What is best where messages cost nothing: all three devices, in pieces."""
    plan = decide("chain", task)
    assert len({shard.device for shard in plan.shards}) == 3
    return plan


def seen(plan: Plan, period_s: float, step: int = 50) -> View:
    watch = Watch(plan, shaped=False)
    watch.period_s = period_s
    there = frozenset(NAMES)
    return View(step, 0.0, plan, watch, there, there)


def test_a_repriced_plan_takes_what_was_measured(split: Plan) -> None:
    assert split.predicted is not None
    wanted = 5 * split.predicted.seconds
    profile = repriced(split, split.profile, wanted)
    assert price(msgspec.structs.replace(split, profile=profile)).seconds == pytest.approx(
        wanted, rel=0.03
    )
    assert repriced(split, split.profile, split.predicted.seconds) is split.profile


def test_one_place_that_is_slow_is_slower_computing(split: Plan) -> None:
    last = len(split.profile.layers) - 1
    alone = priced(msgspec.structs.replace(split, shards=(Shard("a", (0, last)),), micro_batches=1))
    assert alone.predicted is not None
    profile = repriced(alone, split.profile, 3 * alone.predicted.seconds)
    assert profile.devices["a"] == split.profile.devices["a"].scaled(3.0)
    assert profile.devices["b"] == split.profile.devices["b"]


def test_a_plan_that_proves_slow_is_replaced_by_one_place(split: Plan, task: Task) -> None:
    steering = Replanning("chain", split, slack=0.25)
    one = min(p.predicted.seconds for p in one_places(task) if p.predicted)
    change = steering.look(seen(split, 6 * one))
    assert change is not None
    assert {shard.device for shard in change.plan.shards} == {"a"}
    assert "were predicted" in change.why
    # it keeps its promise: nothing changes any more
    assert steering.look(seen(change.plan, one, 100)) is None
    assert steering.look(seen(change.plan, 1.02 * one, 150)) is None


def test_a_plan_within_its_slack_stays_and_so_does_an_emulated_one(split: Plan) -> None:
    assert split.predicted is not None
    assert (
        Replanning("chain", split, slack=0.25).look(seen(split, 1.2 * split.predicted.seconds))
        is None
    )
    assert Replanning("chain", split).look(seen(split, 6 * split.predicted.seconds)) is None


def test_a_change_that_did_not_help_is_taken_back(split: Plan, task: Task) -> None:
    steering = Replanning("chain", split, slack=0.25, every=50)
    one = min(p.predicted.seconds for p in one_places(task) if p.predicted)
    slow = 2 * one
    change = steering.look(seen(split, slow))
    assert change is not None
    # the one place is even slower, as where the device is busy with something else
    assert steering.look(seen(change.plan, 3 * slow, 60)) is None  # too soon after the change
    back = steering.look(seen(change.plan, 3 * slow, 100))
    assert back is not None
    assert not same_plan(back.plan, change.plan)
    assert back.plan.predicted is not None
    assert back.plan.predicted.seconds <= slow


def test_changes_become_rarer(split: Plan) -> None:
    history, waits, step = History(), [], 0
    for _ in range(7):
        history.changed(step, 10)
        begin = step
        while not history.may_change(step):
            step += 10
        waits.append(step - begin)
    assert waits == [10, 20, 40, 80, 160, 160, 160]


def test_a_measured_time_counts_more_than_a_prediction_for_a_while(split: Plan) -> None:
    history = History()
    history.measured(split, 0.5, step=10)
    assert history.seconds(split, 500, 0.1) == 0.5
    assert history.seconds(split, 5000, 0.1) == 0.1
    assert history.plans({"a"}) == []
    assert history.plans(NAMES) == [split]


def test_a_node_that_was_idle_shares_the_load_of_its_host(split: Plan) -> None:
    devices = {
        name: msgspec.structs.replace(times, host="h" if name != "c" else "g", cores=2.0)
        for name, times in split.profile.devices.items()
    }
    plan = msgspec.structs.replace(
        split, profile=msgspec.structs.replace(split.profile, devices=devices)
    )
    watch = Watch(plan)
    watch.probed("a", "b", 3.0, 1e6, 1e6, 0.0)
    assert (watch.slowdown("a"), watch.slowdown("b"), watch.slowdown("c")) == (3.0, 3.0, 1.0)
