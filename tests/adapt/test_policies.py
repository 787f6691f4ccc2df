"""EdgeMove and its baselines on a live run: they see what was measured, and what they ask for happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from weft.adapt.steer import PolicySteering, View
from weft.adapt.watch import Watch
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.fleet.trace import Moment, Trace
from weft.plans import registry
from weft.plans.online import Online, OnlineRequest, Setting
from weft.plans.split import plan_for, setting_of
from weft.program.memory import fits, memory_bytes
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


def test_a_worker_that_died_with_its_standby_is_not_planned_with(
    subject: Subject, fleet: Fleet, script: Any
) -> None:
    """The run ended with `the fleet has no device 'e1'` once."""
    plan = plan_for(Setting("e1", 2), subject.plan("e1", 2, fleet), standby="e2")
    left = frozenset({"phone", "e3"})
    view = View(5, 1.0, plan, Watch(plan), left, left)
    change = PolicySteering(Online(script(start=Setting("e1", 2)), "e1")).lost(view, "e2")
    assert {s.device for s in (*change.plan.shards, *change.plan.standby)} <= left


@pytest.mark.parametrize(
    "strategy", ["edgemove", pytest.param("pipedream-e", marks=pytest.mark.proof)]
)
@pytest.mark.proof
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


@pytest.mark.proof
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


ONLINE = ["edgemove", "edgemove+", "pipedream-e", "device-cloud"]


def cloudy(fleet: Fleet) -> Fleet:
    """e3 is a cloud machine, and the phone is slow enough to want a server."""
    devices = tuple(
        Device(d.name, "cloud" if d.name == "e3" else d.tier, 1e-3 if d.data else 4.0, data=d.data)
        for d in fleet.devices
    )
    return Fleet(devices, fleet.link)


def view_of(plan: Any, fleet: Fleet) -> View:
    return View(0, 0.0, plan, Watch(plan), frozenset(fleet.names), frozenset(fleet.names))


def begun(strategy: str, plan: Any, fleet: Fleet, **options: object) -> Any:
    """The plan that a live run of a strategy begins with."""
    steering = steering_of(strategy, plan, options, 20)
    change = steering.begin(view_of(steering.first(plan), fleet))
    return plan if change is None else change.plan


@pytest.mark.parametrize("strategy", ONLINE)
def test_the_codec_that_was_set_is_the_one_that_runs(
    strategy: str, subject: Subject, fleet: Fleet
) -> None:
    """Policies asked for settings without one, and so a live run dropped it."""
    there = cloudy(fleet)
    plan = begun(strategy, subject.plan("e1", 2, there, codec="int8"), there, codec="int8")
    assert setting_of(plan).worker is not None
    assert plan.codec == "int8"


def test_sizes_are_coded_once_whatever_the_first_plan_chose(subject: Subject, fleet: Fleet) -> None:
    plain = steering_of("edgemove+", subject.plan("e1", 2, fleet), {"codecs": "all"}, 20).policy
    coded = steering_of(
        "edgemove+", subject.plan("e1", 2, fleet, codec="int8"), {"codecs": "all"}, 20
    ).policy
    for codec in ("none", "int8"):
        assert coded._coded[codec].up_bytes.tolist() == plain._coded[codec].up_bytes.tolist()
    assert coded._coded["none"].up_bytes[1] > 3 * coded._coded["int8"].up_bytes[1]


def test_edgemove_plus_may_use_every_machine_live_as_in_its_plans(
    subject: Subject, fleet: Fleet
) -> None:
    """Only a cloud machine is there: the planner took it, and the policy then trained alone."""
    devices = (Device("phone", gflops=1e-4, data=True), Device("e3", "cloud", gflops=1.0))
    far = Fleet(devices, (Link(("phone", "e3"), 200.0, 200.0, 1.0),))
    plan = begun("edgemove+", subject.plan("e3", 2, far), far)
    assert setting_of(plan).worker == "e3"
    with pytest.raises(InputError, match="tier 'edge'"):
        steering_of("edgemove", subject.plan("e3", 2, far), {}, 20)


def test_a_shared_medium_is_seen_as_one_channel(subject: Subject, script: Any) -> None:
    devices = (Device("phone", gflops=1.0, data=True), Device("e1", "edge", gflops=4.0))
    wifi = Fleet(devices, (), (Medium("wifi", "e1", ("phone",), 20.0),))
    policy = script(start=Setting("e1", 2))
    PolicySteering(Online(policy, "e1")).begin(view_of(subject.plan("e1", 2, wifi), wifi))
    assert policy.seen[0].servers[0].shared
    wired = Fleet(devices, (Link(("phone", "e1"), 20.0, 20.0),))
    policy = script(start=Setting("e1", 2))
    PolicySteering(Online(policy, "e1")).begin(view_of(subject.plan("e1", 2, wired), wired))
    assert not policy.seen[0].servers[0].shared


def narrow(fleet: Fleet, phone_mb: float, e1_mb: float) -> Fleet:
    limits = {"phone": phone_mb, "e1": e1_mb}
    devices = tuple(
        Device(d.name, d.tier, d.gflops, limits.get(d.name, 0.001), data=d.data)
        for d in fleet.devices
    )
    return Fleet(devices, fleet.link)


@pytest.mark.parametrize("strategy", ["edgemove", "edgemove+"])
def test_a_live_policy_takes_only_what_fits_with_activations_and_older_weights(
    strategy: str, subject: Subject, fleet: Fleet
) -> None:
    """e2 and e3 have no room at all; the phone has room for one setting's need and no more."""
    plan = subject.plan("e1", 2, fleet)
    needs = {
        (cut, k): memory_bytes(plan_for(Setting("e1", cut, k), plan))
        for cut in range(1, subject.last + 1)
        for k in (2, 4)
    }
    assert needs[2, 4]["phone"] > needs[2, 2]["phone"]  # stashed versions and activations
    room = needs[2, 2]["phone"] / 1e6
    tight = narrow(fleet, phone_mb=room, e1_mb=1.0)
    chosen = begun(strategy, subject.plan("e1", 2, tight), tight)
    assert setting_of(chosen).worker in ("e1", None)
    assert fits(msgspec.structs.replace(chosen, fleet=tight))
    steering = steering_of(strategy, subject.plan("e1", 2, tight), {}, 20)
    assert steering.policy.fits(Setting("e1", 2, 2))
    assert not steering.policy.fits(Setting("e1", 3, 2))
    assert not steering.policy.fits(Setting("e2", 2, 2))


def test_a_phone_without_room_for_the_whole_network_keeps_a_slow_server(
    subject: Subject, fleet: Fleet
) -> None:
    """No server is faster than the phone alone, but the phone cannot hold all layers."""
    devices = (Device("phone", gflops=1.0, data=True), Device("e1", "edge", gflops=1e-3))
    slow = Fleet(devices, (Link(("phone", "e1"), 0.5, 0.5, 1.0),))
    plan = subject.plan("e1", 2, slow)
    assert setting_of(begun("edgemove+", plan, slow)).worker is None
    alone = memory_bytes(plan_for(Setting(None, subject.last + 1), plan))["phone"]
    split = memory_bytes(plan_for(Setting("e1", 1, 1), plan))["phone"]
    assert split < alone
    tight = narrow(slow, phone_mb=(split + alone) / 2e6, e1_mb=100.0)
    chosen = begun("edgemove+", subject.plan("e1", 2, tight), tight)
    assert setting_of(chosen).worker == "e1"
    assert fits(msgspec.structs.replace(chosen, fleet=tight))


def test_who_has_no_room_for_the_copy_does_not_stand_by(
    subject: Subject, fleet: Fleet, script: Any
) -> None:
    tight = narrow(fleet, phone_mb=1.0, e1_mb=1.0)
    view = view_of(subject.plan("e1", 2, tight), tight)
    assert PolicySteering(Online(script(start=Setting("e1", 2)), "e1")).begin(view) is None
