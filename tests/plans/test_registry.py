"""Asking for a plan: what is known is found, what cannot be right is refused before planning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet
from weft.plans import registry
from weft.plans.plan import Plan
from weft.plans.registry import STRATEGIES, get, make_plan, names, strategy
from weft.plans.task import Task


@pytest.fixture
def train_only() -> Iterator[str]:
    """A strategy that trains only, registered for one test."""

    @strategy("train-only", "for a test", modes=("train",))
    def decide(task: Task) -> Plan:
        return STRATEGIES["all-device"].decide(task)

    yield "train-only"
    del registry.STRATEGIES["train-only"]


def test_every_strategy_is_there_with_a_summary() -> None:
    known = {"all-device", "all-edge", "all-cloud", "jointdnn", "jointdnn+", "chain"}
    assert known <= set(names())
    for name in known:
        assert get(name).summary
        assert {"route", "codec"} <= set(get(name).options)


def test_an_unknown_name_is_answered_with_what_is_near() -> None:
    with pytest.raises(InputError, match=r"'jointdn'; did you mean jointdnn or jointdnn\+\?"):
        get("jointdn")


def test_two_strategies_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="chain"):
        strategy("chain", "again")(STRATEGIES["chain"].decide)


def test_planning_time_is_noted(make_task: Callable[..., Task]) -> None:
    assert make_plan("jointdnn", make_task()).planning_s > 0


def test_a_mode_that_a_strategy_lacks_is_refused(
    train_only: str, make_task: Callable[..., Task]
) -> None:
    assert make_plan(train_only, make_task(mode="train")).devices == ("pi",)
    with pytest.raises(InputError, match="train-only is for train, not for infer"):
        make_plan(train_only, make_task(mode="infer"))


def test_an_unknown_option_is_answered_with_the_allowed(make_task: Callable[..., Task]) -> None:
    with pytest.raises(InputError, match=r"micro_batch=3.* did you mean micro_batches\?.* codec"):
        make_plan("chain", make_task(micro_batch="3"))


def test_a_batch_has_at_least_one_sample(make_task: Callable[..., Task]) -> None:
    with pytest.raises(InputError, match="batch = 0"):
        make_plan("chain", make_task(batch=0))


def test_the_source_is_a_device_of_the_fleet(make_task: Callable[..., Task]) -> None:
    with pytest.raises(InputError, match="no device 'phone'"):
        make_plan("chain", make_task(source="phone"))


def test_profile_and_fleet_have_the_same_devices(make_task: Callable[..., Task]) -> None:
    task = make_task()
    with pytest.raises(InputError, match="has times for nuc, cloud, not in the fleet"):
        make_plan("chain", replace(task, fleet=Fleet((Device("pi"),))))
