"""Re-planning for any strategy: only when the step time leaves its band and a new plan is faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from weft.adapt.replan import Replanning
from weft.adapt.steer import View
from weft.adapt.watch import Watch
from weft.errors import InputError, WeftError
from weft.fleet.fleet import Device, Fleet, Link
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.program.lower.lower import lower
from weft.program.timeline import Span, Timeline
from weft.simulate.simulate import simulate

Subject = Any
FLEET = Fleet(
    (Device("phone", gflops=0.01, data=True), Device("near", "edge", gflops=0.5),
     Device("far", "cloud", gflops=0.4)),
    (Link(("phone", "near"), 50.0, 80.0, 1.0), Link(("phone", "far"), 20.0, 20.0, 5.0),
     Link(("near", "far"), 100.0, 100.0, 2.0)),
)  # fmt: skip


@pytest.fixture
def plan(subject: Subject) -> Plan:
    task = make_task(
        derive_profile(subject.graph, FLEET), FLEET, batch=32, source="phone",
        options={"micro_batches": 2},
    )  # fmt: skip
    return decide("chain", task)


def happened(plan: Plan, **slower: float) -> Timeline:
    """What a run's timeline would be with some devices slower than their profile."""
    devices = {n: t.scaled(slower.get(n, 1.0)) for n, t in plan.profile.devices.items()}
    profile = msgspec.structs.replace(plan.profile, devices=devices)
    found = simulate(lower(msgspec.structs.replace(plan, profile=profile)), 12)
    spans = tuple(_as_measured(span) for span in found.spans)
    return msgspec.structs.replace(found, spans=spans)


def _as_measured(span: Span) -> Span:
    """Real transfers are called by kind, cut and destination."""
    if span.what != "transfer":
        return span
    label = f"{span.label.rpartition('.')[0]}>{span.where.partition('>')[2]}"
    return msgspec.structs.replace(span, label=label)


def view(plan: Plan, watch: Watch, step: int, reach: set[str] | None = None) -> View:
    there = frozenset(reach or FLEET.names)
    return View(step, 0.0, plan, watch, there, there)


def test_a_watch_finds_slowdowns_rates_and_round_trips(plan: Plan) -> None:
    worker = plan.shards[-1].device
    assert worker == "near"
    watch = Watch(plan)
    watch.take(happened(plan, near=2.5))
    assert watch.slowdown("near") == pytest.approx(2.5)
    assert watch.rate("phone", "near") == pytest.approx(50e6 / 8)
    assert watch.slowdown("far") == 1.0  # it had nothing to do
    assert watch.rate("near", "far") == pytest.approx(100e6 / 8)  # as planned: nothing crossed
    assert watch.period_s > 0
    assert watch.profile().devices["near"].forward_s[0] == pytest.approx(
        2.5 * plan.profile.devices["near"].forward_s[0]
    )
    measured = watch.fleet().link[0]
    assert measured.up_mbps == pytest.approx(50.0)


def test_round_trips_are_seen_where_both_sides_wait(subject: Subject, fleet: Fleet) -> None:
    plan = subject.plan("e1", 2, fleet, stale=0)
    watch = Watch(plan)
    watch.take(happened(plan))
    assert watch.rtt("phone", "e1") == pytest.approx(0.002, rel=0.01)


def test_nothing_happens_while_the_step_time_stays_in_its_band(plan: Plan) -> None:
    steering, watch = Replanning("chain", plan, options={"micro_batches": 2}), Watch(plan)
    for step, factor in enumerate((1.0, 1.05, 0.96)):
        watch.take(happened(plan, near=factor, phone=factor))
        assert steering.look(view(plan, watch, step)) is None


def test_a_slow_device_is_left_when_another_plan_is_faster(plan: Plan) -> None:
    steering, watch = Replanning("chain", plan, options={"micro_batches": 2}), Watch(plan)
    watch.take(happened(plan))
    assert steering.look(view(plan, watch, 10)) is None
    watch.take(happened(plan, near=20.0))
    change = steering.look(view(plan, watch, 20))
    assert change is not None
    assert "near" not in change.plan.devices
    assert change.plan.profile == plan.profile  # emulated devices are paced by what they were
    assert "predicted" in change.why
    # When everything has become slower alike, no other plan is better.
    steering = Replanning("chain", plan, options={"micro_batches": 2})
    watch = Watch(plan)
    watch.take(happened(plan))
    steering.look(view(plan, watch, 10))
    watch.take(happened(plan, near=1.2, phone=1.2, far=1.2))
    assert steering.look(view(plan, watch, 20)) is None


def test_a_lost_device_is_planned_around(plan: Plan) -> None:
    steering = Replanning("chain", plan, options={"micro_batches": 2, "devices": "phone,near"})
    change = steering.lost(view(plan, Watch(plan), 5, {"phone", "far"}), "near")
    assert "near" not in change.plan.devices
    assert "near" not in change.plan.fleet.names


def test_a_look_after_a_loss_plans_without_the_option_that_names_the_lost_device(
    plan: Plan,
) -> None:
    """It reported `advice_failed` at every look until the run ended."""
    steering = Replanning("chain", plan, options={"micro_batches": 2, "devices": "phone,near,far"})
    change = steering.lost(view(plan, Watch(plan), 5, {"phone", "far"}), "near")
    watch = Watch(change.plan)
    watch.take(happened(change.plan))
    steering.look(view(change.plan, watch, 10, {"phone", "far"}))
    watch.take(happened(change.plan, phone=3.0, far=3.0))  # out of its band: it plans again
    steering.look(view(change.plan, watch, 20, {"phone", "far"}))
    assert steering.notes() == []


@pytest.mark.parametrize("strategy", ["hiertrain+", "hiertrain"])
def test_hiertrain_goes_on_with_the_two_machines_that_are_left(
    subject: Subject, strategy: str
) -> None:
    task = make_task(derive_profile(subject.graph, FLEET), FLEET, batch=32, source="phone")
    plan = decide(strategy, task)
    change = Replanning(strategy, plan).lost(view(plan, Watch(plan), 5, {"phone", "far"}), "near")
    assert change.plan.strategy == strategy
    assert set(change.plan.devices) <= {"phone", "far"}


@pytest.mark.parametrize("strategy", ["jalad", "all-edge"])
def test_a_strategy_that_needs_the_lost_device_gives_way_to_one_that_does_not(
    subject: Subject, strategy: str
) -> None:
    task = make_task(derive_profile(subject.graph, FLEET), FLEET, batch=32, source="phone")
    plan = decide(strategy, task)
    steering = Replanning(strategy, plan)
    watch = Watch(plan)
    change = steering.lost(view(plan, watch, 5, {"phone", "far"}), "near")
    assert "near" not in change.plan.devices
    assert change.plan.micro_batches == 1
    assert f"{strategy} cannot plan without it, chain can" in change.why
    # It goes on with what fits, and the device's return brings the strategy back.
    assert steering.look(view(change.plan, watch, 6, {"phone", "far"})) is None
    back = steering.look(view(change.plan, watch, 7))
    assert back is None or back.plan.strategy == strategy
    assert steering.notes() == []


def test_a_plan_that_the_run_forbids_is_not_taken_after_a_loss(plan: Plan) -> None:
    def whole_only(candidate: Plan) -> None:
        if candidate.micro_batches > 1:
            raise InputError("whole minibatches only")

    asked = view(plan, Watch(plan), 5, {"phone", "far"})
    steering = Replanning("chain", plan, options={"micro_batches": 2})
    change = steering.lost(replace(asked, check=whole_only), "near")
    assert change.plan.micro_batches == 1


def test_where_nothing_fits_every_reason_is_told(plan: Plan) -> None:
    def nothing(candidate: Plan) -> None:
        raise WeftError(f"not {candidate.strategy}")

    asked = replace(view(plan, Watch(plan), 5, {"phone", "far"}), check=nothing)
    with pytest.raises(WeftError, match=r"no plan for far, phone: all-edge: .*chain: not chain"):
        Replanning("all-edge", plan).lost(asked, "near")
