"""Asking for a plan: what is known is found, what cannot be right is refused before planning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet
from weft.plans import registry
from weft.plans.online import OnlineRequest
from weft.plans.plan import Plan
from weft.plans.protocols import GO_BACK, ONE_NETWORK
from weft.plans.registry import STRATEGIES, behind, get, make_plan, names, strategy
from weft.plans.strategy import resolve
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


def test_one_function_is_a_whole_strategy(make_task: Callable[..., Task]) -> None:
    @strategy("one-function", "for a test")
    def decide(task: Task) -> Plan:
        return STRATEGIES["all-device"].decide(task)

    try:
        record = get("one-function")
        assert make_plan("one-function", make_task()).strategy == "one-function"
    finally:
        del STRATEGIES["one-function"]
    assert (record.workload, record.recovery) == (ONE_NETWORK, GO_BACK)
    assert record.replan
    assert record.exact
    assert record.online is None


def test_what_is_no_plan_is_refused(make_task: Callable[..., Task]) -> None:
    strategy("no-plan", "for a test")(lambda task: "a plan")  # type: ignore[arg-type,return-value]
    try:
        with pytest.raises(InputError, match="no-plan gave a str; it must return"):
            make_plan("no-plan", make_task())
    finally:
        del STRATEGIES["no-plan"]


def test_a_plan_of_an_unknown_strategy_says_what_it_is(make_task: Callable[..., Task]) -> None:
    plan = msgspec.structs.replace(make_plan("chain", make_task()), strategy="from-elsewhere")
    record = behind(plan)
    assert record.name == "from-elsewhere"
    assert not record.replan
    with pytest.raises(InputError, match="unknown strategy 'from-elsewhere'"):
        record.decide(make_task())
    assert behind(make_plan("chain", make_task())) is get("chain")


@pytest.mark.parametrize("name", [n for n in names() if get(n).online is not None])
def test_every_live_policy_can_be_made(name: str, make_task: Callable[..., Task]) -> None:
    task = make_task()
    plan = make_plan(name, task)
    online = get(name).make_online(OnlineRequest(plan, {}, every=20))
    assert online.policy.every == 20
    assert online.reference in task.fleet.names


def test_a_strategy_without_a_policy_says_so(make_task: Callable[..., Task]) -> None:
    plan = make_plan("chain", make_task())
    with pytest.raises(InputError, match="chain has no policy"):
        get("chain").make_online(OnlineRequest(plan, {}))


def test_what_cannot_be_imported_is_named() -> None:
    with pytest.raises(InputError, match=r"'weft\.nothing:x' cannot be imported"):
        resolve("weft.nothing:x")


@pytest.mark.parametrize("key", ["route", "codec", "input_codec"])
@pytest.mark.parametrize("name", ["all-device", "fedavg"])
def test_a_wrong_codec_or_route_is_refused_also_where_nothing_is_sent(
    key: str, name: str, make_task: Callable[..., Task]
) -> None:
    with pytest.raises(InputError, match=f"--set {key}=nobody is not allowed"):
        make_plan(name, make_task(**{key: "nobody"}))
