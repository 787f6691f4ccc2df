"""Probing: a test network that costs the same and shows nothing; notices of servers that got faster."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.adapt.probe_network import MOST, probe_network, profile_flops, segment_flops
from weft.fleet.trace import Moment, Trace
from weft.graph.execute import Runner
from weft.plans.online import Setting
from weft.runtime.emulate.local import LocalFleet

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
