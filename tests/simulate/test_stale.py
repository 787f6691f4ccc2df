"""Minibatches in flight: the simulated period is P = max(C, W, U, D, (C + W + U + D + RTT) / k)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.plans.plan import Plan, Shard
from weft.program.lower.lower import lower
from weft.program.validate import check_flow
from weft.simulate.price import price
from weft.simulate.simulate import simulate

MakePlan = Callable[..., Plan]


def whole(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@settings(max_examples=40, deadline=None)
@given(
    phone=st.tuples(whole(1, 30), whole(1, 30)), edge=st.tuples(whole(1, 30), whole(1, 30)),
    up=whole(1, 40), down=whole(1, 40), latency=whole(0, 60), update=whole(0, 4), k=whole(1, 8),
)  # fmt: skip
def test_the_period_is_the_slowest_resource_or_the_way_shared_by_those_in_flight(
    phone_and_edge: MakePlan,
    phone: tuple[int, int], edge: tuple[int, int], up: int, down: int,
    latency: int, update: int, k: int,
) -> None:  # fmt: skip
    plan = phone_and_edge(
        phone=phone, edge=edge, up=up, down=down, latency_ms=latency * 1000.0, update=update,
        stale=k - 1,
    )  # fmt: skip
    client, worker = sum(phone) + update, sum(edge) + update
    # The gradient leaves before the worker updates, so the way does not wait for that.
    way = client + up + down + sum(edge) + 2 * latency
    expected = max(client, worker, up, down, way / k)
    # Where two terms nearly tie the larger one takes over late: up to way / (1 / k) minibatches.
    steps = 3000
    ends = simulate(lower(plan), steps, spans=False).step_ends
    begin, end = steps - 10 - 840, steps - 10  # a multiple of every k up to 8, before the drain
    slope = (ends[end] - ends[begin]) / 840
    assert slope == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_the_price_of_minibatches_in_flight(phone_and_edge: MakePlan, k: int) -> None:
    plan = phone_and_edge(stale=k - 1, latency_ms=3000.0, up=2.0, down=1.0)
    way = 3 + 1.5 + 2 + 1 + 6
    assert price(plan).step_s == pytest.approx(max(3.0, way / k))


@pytest.mark.parametrize("stale", range(6))
def test_a_plan_there_and_back_comes_to_its_end(phone_and_edge: MakePlan, stale: int) -> None:
    """The phone keeps the labels: the edge computes the middle."""
    plan = phone_and_edge(stale=stale)
    layers = (*plan.profile.layers, plan.profile.layers[-1])
    times = {
        name: type(t)(*((x[0],) * 3 for x in (t.forward_s, t.backward_s, t.update_s)))
        for name, t in plan.profile.devices.items()
    }
    profile = msgspec.structs.replace(plan.profile, layers=layers, devices=times)
    shards = (Shard("phone", (0, 0)), Shard("edge", (1, 1)), Shard("phone", (2, 2)))
    plan = msgspec.structs.replace(plan, profile=profile, shards=shards)
    program = lower(plan)
    check_flow(program)
    serial = 3 + 3 + 1.5 + 2 + 2 + 2 + 2
    step_s = price(plan).step_s
    assert step_s is not None
    assert 6.0 <= step_s <= serial + 1e-9
    if stale == 0:
        assert step_s == pytest.approx(serial)
    if stale >= 4:
        assert step_s == pytest.approx(6.0)  # the phone is never idle
