"""Probing: a test network that costs the same and shows nothing; notices of servers that got faster."""

from __future__ import annotations

import math
import queue
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.adapt.probe_network import (
    MOST,
    MOST_FLOPS,
    MOST_SAMPLES,
    TRAIN_S,
    probe_network,
    probe_work,
    profile_flops,
    segment_flops,
)
from weft.adapt.probes import LEAST_LIMIT_S, SLACK, Probes
from weft.adapt.watch import Watch
from weft.errors import LostDevice
from weft.fleet.fleet import Device, Fleet
from weft.fleet.trace import Moment, Trace
from weft.graph.execute import Runner
from weft.plans.online import Setting
from weft.plans.profile import LayerCost, Profile
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.jobs import Settings
from weft.runtime.wire import messages as msg
from weft.strategies.edgemove.model import split_costs
from weft.strategies.edgemove.online.plus import EdgeMovePlus

Subject = Any


@settings(max_examples=60, deadline=None)
@given(st.floats(3, 9), st.integers(0, 2**32))
def test_a_test_network_costs_what_the_real_one_costs(exponent: float, seed: int) -> None:
    flops = 10**exponent
    assert segment_flops(probe_network(flops, seed)) == pytest.approx(flops, rel=0.1, abs=2000)


def test_only_the_cost_goes_in_and_layers_are_drawn_at_random(subject: Subject, fleet: Any) -> None:
    flops = profile_flops(subject.plan("e1", 2, fleet).profile)
    networks = [probe_network(flops, seed) for seed in range(40)]
    counts = {sum(len(s.shape) == 2 for s in network.state.values()) for network in networks}
    assert len(counts) >= 4
    assert max(counts) <= MOST
    assert len({msgspec.json.encode(network) for network in networks}) == 40
    real = {info.shape for info in subject.graph.state.values() if len(info.shape) == 2}
    assert all(not real <= {s.shape for s in network.state.values()} for network in networks)


def test_a_test_network_can_be_trained() -> None:
    network = probe_network(1e5, 3)
    state = {n: torch.randn(s.shape) * 0.1 for n, s in network.state.items()}
    runner = Runner(network, state)
    (width,) = (v.shape[1] for v in network.inputs.values())
    (output,) = runner.forward({"x": torch.randn(5, width)}, training=True).values()
    output.sum().backward()
    assert output.shape[0] == 5
    assert all(p.grad is not None for p in runner.parameters)


def test_probes_see_slow_servers_and_slow_links_and_notices_tell_of_faster_ones(
    go: Callable[..., Any], shared: LocalFleet, script: Any, fleet: Any
) -> None:
    """e2 is four times slower than its profile and becomes fast; e3's link is a tenth of e2's."""
    trace = Trace((
        Moment(0.0, device="e2", slowdown=400.0), Moment(0.0, link=("phone", "e3"), up_mbps=10.0),
        Moment(1.2, device="e2", slowdown=100.0),
    ))  # fmt: skip
    policy = script(start=Setting("e1", 2), every=20, settings=[None] * 500)
    go(
        shared, policy, 900, trace=trace,
        paced=frozenset({"e1", "e2", "e3"}),
    )  # fmt: skip
    first = {server.name: server for server in policy.seen[0].probed}
    assert first["e2"].slowdown > 200
    assert first["e2"].slowdown > 2 * first["e1"].slowdown
    assert first["e3"].up_bytes_per_s == pytest.approx(10e6 / 8, rel=0.3)
    assert first["e2"].up_bytes_per_s > 5 * first["e3"].up_bytes_per_s
    assert 0.0015 < first["e1"].rtt_s < 0.1
    assert math.isfinite(first["e1"].down_bytes_per_s)
    assert any("e2" in seen.faster for seen in policy.seen)
    assert policy.seen[-1].servers[1].slowdown < first["e2"].slowdown / 2


@settings(max_examples=60, deadline=None)
@given(st.floats(4, 11), st.integers(1, 64), st.floats(-3, 3), st.integers(0, 2**32))
def test_a_probe_trains_a_known_share_that_is_short_on_the_slowest_device(
    exponent: float, batch: int, seconds: float, seed: int
) -> None:
    """A step of VGG-16 takes seconds: then fewer samples are trained, or less of the network."""
    flops, slowest_s = 10**exponent, 10**seconds
    profile = Profile("any", 4, (LayerCost("a", 4, 4, flops),), {})
    work = probe_work(profile, batch, slowest_s, seed)
    per_sample = segment_flops(work.segment)
    assert work.samples <= MOST_SAMPLES
    assert per_sample <= MOST_FLOPS * 1.1 + 2000
    assert work.share == pytest.approx(per_sample * work.samples / (flops * batch))
    least = 2000 * work.samples / (flops * batch)  # of the smallest network that there is
    assert work.share * slowest_s <= max(TRAIN_S, least * slowest_s) * 1.2
    if slowest_s <= TRAIN_S and batch * flops <= MOST_FLOPS:
        assert work.share == pytest.approx(1.0, rel=0.2, abs=least)


def probes_of(subject: Subject, fleet: Fleet, **settings: Any) -> Probes:
    """Probes of a run that only this test talks to."""
    plan = subject.plan("e1", 2, fleet)
    run = SimpleNamespace(
        plan=plan, settings=Settings(**settings), run_id="r", everyone=fleet.names, heard=None,
        crew=SimpleNamespace(present=fleet.names, events=queue.Queue()), absent=set(),
    )  # fmt: skip
    return Probes(run, Watch(plan))  # type: ignore[arg-type]


def test_servers_that_are_gone_are_neither_probed_nor_waited_for(
    subject: Subject, fleet: Fleet
) -> None:
    """Two servers died at once: the recovery probed the second one and waited 0.75 s for its answer."""
    probes = probes_of(subject, fleet)
    run: Any = probes.run
    run.crew.present = tuple(d for d in fleet.names if d != "e1")
    run.absent.add("e2")
    assert probes.servers == ["e3"]
    probes._waiting, probes._until = {"e3"}, time.monotonic() + 2.0
    lost = LostDevice("e3", "e3 is gone")
    run.crew.events.put(lost)
    probes.wait()
    assert not probes._waiting
    assert run.crew.events.get_nowait() is lost  # the run hears of it as well


def answer(server: str, seconds: float) -> msg.ServerProbed:
    return msg.ServerProbed("phone", server, True, seconds, 1e6, 1e6, 0.01)


def step_s(probes: Probes, server: str) -> float:
    """What a step of the real network takes on a server, as a policy sees it."""
    return probes.watch.slowdown(server) * probes._step_s(server)


def test_real_servers_are_compared_with_each_other_whatever_their_profiles_say(
    subject: Subject, fleet: Fleet
) -> None:
    """Each was divided by its own best before: the first answer of every server was 1.0."""
    odd = Fleet(tuple(Device(d.name, d.tier, 40.0 if d.name == "e3" else d.gflops, data=d.data)
                      for d in fleet.devices), fleet.link)  # fmt: skip
    probes = probes_of(subject, odd)
    assert probes.everyone == ["phone", "e1", "e2", "e3"]
    for server, seconds in (("phone", 0.4), ("e1", 0.1), ("e2", 0.2), ("e3", 0.3)):
        probes.hear(answer(server, seconds))
    client = probes._step_s("phone")
    assert step_s(probes, "e1") == pytest.approx(client / 4)
    assert step_s(probes, "e2") == pytest.approx(client / 2)
    assert step_s(probes, "e3") == pytest.approx(client * 3 / 4)


def test_a_server_that_has_worked_tells_what_a_test_network_stands_for(
    subject: Subject, fleet: Fleet
) -> None:
    probes = probes_of(subject, fleet)
    for server, seconds in (("phone", 0.4), ("e1", 0.1), ("e2", 0.2)):
        probes.hear(answer(server, seconds))
    probes.watch._slowdowns["e1"] = 7.0  # by its spans
    probes.worked("e1")
    probes.hear(answer("e1", 0.1))
    probes.hear(answer("e2", 0.2))
    assert step_s(probes, "e1") == pytest.approx(7 * probes._step_s("e1"))
    assert step_s(probes, "e2") == pytest.approx(2 * step_s(probes, "e1"))


def test_a_limit_is_a_multiple_of_what_is_expected_and_never_very_short(
    subject: Subject, fleet: Fleet
) -> None:
    slow = Fleet(
        tuple(Device(d.name, d.tier, 1e-6, data=d.data) for d in fleet.devices), fleet.link
    )
    probes = probes_of(subject, slow, paced=frozenset(fleet.names))
    expected = probes._step_s("e1") * probes._work.share
    assert probes._step_s("e1") > 1
    exchange = probes._exchange("e1", training=False)
    assert exchange.train_s > SLACK * expected
    assert exchange.ping_s == LEAST_LIMIT_S
    priced = msgspec.structs.replace(
        probes.run.plan, stale=2, predicted=SimpleNamespace(seconds=3.0)
    )
    probes.run.plan = priced
    busy = probes._exchange("e1", training=True)  # three minibatches may wait for the link
    assert busy.ping_s == pytest.approx(exchange.ping_s + 9.0)
    assert probes._exchange("e2", training=True).ping_s == exchange.ping_s  # a link of its own


def test_a_server_on_which_a_step_takes_seconds_is_in_reach(
    go: Callable[..., Any], shared: LocalFleet, script: Any, fleet: Any, subject: Subject
) -> None:
    """A probe had to finish a whole step within 0.75 s: else its server was out of reach."""
    flops = 3 * profile_flops(subject.plan("e1", 2, fleet).profile) * subject.batch
    devices = tuple(Device(d.name, d.tier, flops / 3e9 if d.tier == "edge" else 1.0, data=d.data)
                    for d in fleet.devices)  # fmt: skip
    policy = script(start=Setting(None, 4), every=20)
    go(shared, policy, 3, start=(None, 4), on=Fleet(devices, fleet.link),
       paced=frozenset({"e1", "e2", "e3"}))  # fmt: skip
    slowdowns = {server.name: server.slowdown for server in policy.seen[0].probed}
    assert slowdowns == {name: pytest.approx(1.0, rel=0.5) for name in ("e1", "e2", "e3")}


@pytest.mark.proof  # it compares times that were really measured
def test_unpaced_servers_are_told_by_the_clients_own_speed(
    go: Callable[..., Any], shared: LocalFleet, script: Any, fleet: Any
) -> None:
    """All are this machine; the profile has the servers four times as fast as the client.

    Other work may disturb the one measurement of the client to which a run compares its servers, so this is
    the median of three runs.
    """
    slowdowns: dict[str, list[float]] = {name: [] for name in ("e1", "e2", "e3")}
    for _ in range(3):
        policy = script(start=Setting(None, 4), every=20)
        go(shared, policy, 3, start=(None, 4))
        for server in policy.seen[0].probed:
            slowdowns[server.name].append(server.slowdown)
    for name, measured in slowdowns.items():
        assert 1.2 < statistics.median(measured) < 14, (name, measured)


def test_alone_says_why_and_the_prediction_is_that_of_the_plan_that_runs(
    go: Callable[..., Any], shared: LocalFleet, fleet: Any, subject: Subject
) -> None:
    away = Trace(tuple(Moment(0.0, device=name, in_reach=False) for name in ("e1", "e2", "e3")))
    plan = subject.plan("e1", 2, fleet)
    policy = EdgeMovePlus(split_costs(plan.profile, "phone", "e1", plan.batch))
    ran = go(shared, policy, 5, trace=away, paced=frozenset(fleet.names))
    event = next(e for e in ran.live.events if e["kind"] == "worker_changed")
    assert event["why"].startswith("the client trains alone: no server is in reach (e1 did not ")
    assert "within 0.75 s" in event["why"]
    predicted = ran.live.plan.predicted
    assert predicted is not None
    assert set(predicted.compute_s) == {"phone"}
    assert predicted.seconds == pytest.approx(policy.costs.alone_s, rel=0.05)
