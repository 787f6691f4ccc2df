"""Prices of plans."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from weft.plans.plan import Plan
from weft.program.lower.lower import lower
from weft.program.memory import fits
from weft.simulate.price import price, priced
from weft.simulate.simulate import simulate

MakePlan = Callable[..., Plan]
MB = 1_000_000


def test_the_price_of_a_training_step(phone_and_edge: MakePlan) -> None:
    predicted = price(phone_and_edge(batch=2, update=0.25))
    assert predicted.step_s == 2 * (1 + 2 + 0.5 + 1 + 2 + 2) + 0.25
    assert predicted.latency_s is None
    assert predicted.seconds == predicted.step_s
    assert predicted.compute_s == {"phone": 6.25, "edge": 3.25}
    assert predicted.transfer_bytes == {"phone>edge": 4 * MB, "edge>phone": 4 * MB}
    # Two samples. The phone has two minibatches of 10 MB each while it loads; then one of them, the
    # gradient that came (2), and in the backward pass a layer's ends (10 + 2).
    assert predicted.memory_bytes["phone"] == 200 + 2 * (10 + 2 + 12) * MB
    # The edge has its input, its output's gradient, its input's, and a layer's ends (2 + 2).
    assert predicted.memory_bytes["edge"] == 200 + 2 * 10 * MB


def test_the_price_of_an_answer(phone_and_edge: MakePlan) -> None:
    predicted = price(phone_and_edge(mode="infer", latency_ms=250.0))
    assert predicted.latency_s == 1 + 2.25 + 0.5 + 2.25
    assert predicted.step_s is None
    assert predicted.seconds == predicted.latency_s


def all_edge(plan: Plan) -> Plan:
    return msgspec.structs.replace(
        plan, shards=tuple(msgspec.structs.replace(s, device="edge") for s in plan.shards)
    )


def test_the_first_step_that_fills_the_pipeline_does_not_count(phone_and_edge: MakePlan) -> None:
    """A source that may feed ahead is ahead from the second step on."""
    alone = all_edge(phone_and_edge(edge=(3.0, 9.0), batch=1, ahead=2))
    first = simulate(lower(alone)).step_ends[0]
    assert first == 10 + 24
    assert price(alone).step_s == 24


@pytest.mark.parametrize(("forward", "backward"), [(3.0, 9.0), (0.5, 1.0)])
def test_feeding_ahead_hides_the_shorter_of_transfer_and_compute(
    phone_and_edge: MakePlan, forward: float, backward: float
) -> None:
    """Two layers take 2 * (forward + backward), the samples 10 s; both ways 0.25 s of latency."""
    compute, latency = 2 * (forward + backward), 0.25
    serial = phone_and_edge(edge=(forward, backward), latency_ms=latency * 1000)
    assert price(all_edge(serial)).step_s == 10 + compute + 2 * latency
    for ahead in (2, 3):
        step_s = price(all_edge(msgspec.structs.replace(serial, ahead=ahead))).step_s
        assert step_s is not None
        assert max(10, compute) <= step_s <= max(10, compute) + 2 * latency


def test_a_plan_that_does_not_fit_has_a_price_too(phone_and_edge: MakePlan) -> None:
    plan = phone_and_edge()
    devices = tuple(msgspec.structs.replace(d, memory_mb=0.001) for d in plan.fleet.devices)
    small = msgspec.structs.replace(
        plan, fleet=msgspec.structs.replace(plan.fleet, devices=devices)
    )
    assert not fits(small)
    assert price(small) == price(plan)


def test_a_priced_plan_is_the_same_plan_with_its_price(phone_and_edge: MakePlan) -> None:
    plan = phone_and_edge()
    assert priced(plan).predicted == price(plan)
    assert msgspec.structs.replace(priced(plan), predicted=None) == plan


@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_a_codec_shortens_what_crosses_the_link(phone_and_edge: MakePlan, codec: str) -> None:
    assert price(phone_and_edge(codec=codec)).seconds < price(phone_and_edge()).seconds
