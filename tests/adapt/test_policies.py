"""EdgeMove and its baselines on a live run: they see what was measured, and what they ask for happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft.adapt.steer import PolicySteering, View
from weft.adapt.watch import Watch
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet
from weft.fleet.trace import Moment, Trace
from weft.plans import registry
from weft.plans.online import Online, OnlineRequest, Setting
from weft.plans.split import plan_for, setting_of
from weft.runtime.emulate.local import LocalFleet

Subject = Any


def steering_of(
    strategy: str, plan: Any, options: dict[str, object], every: int | None, scale: float = 1.0
) -> PolicySteering:
    request = OnlineRequest(plan, options, every, scale, seed=0)
    return PolicySteering(registry.get(strategy).make_online(request))


def test_the_strategies_with_online_decisions_are_known() -> None:
    online = {name for name in registry.names() if registry.get(name).online is not None}
    assert online == {"edgemove", "edgemove+", "pipedream-e", "device-cloud"}


def test_a_setting_and_its_plan_say_the_same(subject: Subject, fleet: Fleet) -> None:
    like = subject.plan("e1", 1, fleet)
    for setting in (Setting("e2", 3, 4), Setting("e1", 1, 1, "fp16"), Setting(None, 4, 1)):
        assert setting_of(plan_for(setting, like)) == setting
    home = plan_for(Setting("e2", 1, 2), like, labels="home")
    assert [s.device for s in home.shards] == ["phone", "e2", "phone"]
    assert setting_of(home) == Setting("e2", 1, 2)
    alone = plan_for(Setting("e2", 3, 2), like, labels="home")  # only the last layer would be left
    assert setting_of(alone).worker is None
    with pytest.raises(InputError, match="cut = 0 would send the samples away"):
        plan_for(Setting("e1", 0), like)


def test_who_stands_by_is_wired_to_the_worker_and_not_over_the_client(
    subject: Subject, fleet: Fleet, script: Any
) -> None:
    plan = subject.plan("e1", 2, fleet)
    view = View(0, 0.0, plan, Watch(plan), frozenset(fleet.names), frozenset(fleet.names))
    change = PolicySteering(Online(script(start=Setting("e1", 2)), "e1")).begin(view)
    assert change is not None
    assert [s.device for s in change.plan.standby] == ["e2"]
    assert change.plan.standby[0].layers == (2, subject.last)
    star = Fleet(fleet.devices, fleet.link[:3])  # no wires
    plan = subject.plan("e1", 2, star)
    view = View(0, 0.0, plan, Watch(plan), frozenset(star.names), frozenset(star.names))
    assert PolicySteering(Online(script(start=Setting("e1", 2)), "e1")).begin(view) is None
    named = PolicySteering(Online(script(start=Setting("e1", 2)), "e1", standby="e3")).begin(view)
    assert named is not None
    assert named.plan.standby[0].device == "e3"


@pytest.mark.parametrize("strategy", ["edgemove", "pipedream-e"])
def test_a_policy_leaves_a_worker_out_of_reach(
    strategy: str, go: Callable[..., Any], shared: LocalFleet, subject: Subject, fleet: Fleet
) -> None:
    """Only e1 is there at first; at 1.5 s it goes out of reach and e2 comes."""
    plan = subject.plan("e1", 2, fleet)
    steering = steering_of(strategy, plan, {}, 20)
    trace = Trace((
        Moment(0.0, device="e2", in_reach=False), Moment(0.0, device="e3", in_reach=False),
        Moment(1.5, device="e1", in_reach=False), Moment(1.5, device="e2", in_reach=True),
    ))  # fmt: skip
    ran = go(shared, steering.policy, 700, trace=trace,
             paced=frozenset(fleet.names), standby="auto")  # fmt: skip
    assert sorted(ran.losses) == list(range(700))
    kinds = set(ran.kinds)
    assert kinds >= {"device_lost", "recovered"}
    lost = next(e for e in ran.live.events if e["kind"] == "device_lost")
    assert lost["device"] == "e1"
    recovered = next(e for e in ran.live.events if e["kind"] == "recovered")
    assert recovered["worker"][0] == "e1"
    assert recovered["repeated"] <= 2 * 4
    assert setting_of(ran.live.plan).worker in ("e2", None)


def test_options_that_cannot_be_right_are_refused(subject: Subject, fleet: Fleet) -> None:
    plan = subject.plan("e1", 2, fleet)
    with pytest.raises(InputError, match="worker or home"):
        steering_of("edgemove", plan, {"labels": "nowhere"}, None)
    with pytest.raises(InputError, match="no device 'e9'"):
        steering_of("edgemove", plan, {"standby": "e9"}, None)
    with pytest.raises(InputError, match="tier 'cloud'"):
        steering_of("device-cloud", plan, {}, None)


def test_device_cloud_keeps_its_machine_in_a_live_run_and_cuts_again_when_the_link_gets_slow(
    go: Callable[..., Any], shared: LocalFleet, subject: Subject, fleet: Fleet
) -> None:
    """e3 is the cloud. From 1 s on its link is so slow that a smaller tensor is worth computing for."""
    devices = tuple(
        Device(d.name, "cloud" if d.name == "e3" else d.tier, d.gflops / 100, data=d.data)
        for d in fleet.devices
    )
    slower = Fleet(devices, fleet.link)
    steering = steering_of("device-cloud", subject.plan("e3", 2, slower), {}, 20)
    trace = Trace((Moment(1.0, link=("phone", "e3"), up_mbps=0.25, down_mbps=0.25),))
    ran = go(shared, steering.policy, 300, start=("e3", 2), trace=trace, on=slower,
             reference="e3", paced=frozenset(fleet.names))  # fmt: skip
    assert sorted(ran.losses) == list(range(300))
    assert set(ran.kinds) == {"replanned"}
    first, *_, last = ran.live.events
    assert first["why"] == "the best cut for the cloud"
    assert last["why"] == "the data rates changed"
    assert last["cut"][0] < last["cut"][1] == 3
    assert setting_of(ran.live.plan) == Setting("e3", 3, 2)


def test_a_short_run_shortens_the_papers_cycles_unless_told_otherwise(
    subject: Subject, fleet: Fleet
) -> None:
    plan = subject.plan("e1", 2, fleet)

    def every(strategy: str, given: int | None, scale: float) -> int:
        return steering_of(strategy, plan, {}, given, scale).every

    assert every("edgemove", None, 1.0) == 500
    assert every("edgemove", None, 0.1) == 50
    assert every("edgemove+", None, 0.1) == 10
    assert every("edgemove+", None, 0.5) == 25
    assert every("edgemove", 30, 0.1) == 30
