"""Plans with lanes have a price, and no device or channel does more than fits into it."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import mean

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.fleet.fleet import Device, Fleet, Link, Route
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes, LayerCost
from weft.program.instructions import Send
from weft.program.lower.lower import lower
from weft.simulate.compiled import compile_program
from weft.simulate.price import price
from weft.simulate.simulate import run, simulate

MakeLanes = Callable[..., Plan]
AnyLanes = Callable[..., st.SearchStrategy[Plan]]


def test_two_shares_are_the_longer_one_and_the_exchange(make_lanes: MakeLanes) -> None:
    """Ten samples at a, six at b, one layer, a second there and a second back each."""
    plan = make_lanes((10, "a"), (6, "b"), layers=(LayerCost("l", 500_000, 10),))
    # a adds up, as it has the most samples; b's gradient came before it was done. The sum takes
    # half a second to b, which has time enough: a goes on with the next minibatch meanwhile.
    assert simulate(lower(plan), steps=1).step_ends[0] == pytest.approx(10 * 2 + 0.5)
    assert price(plan).step_s == pytest.approx(10 * 2)
    assert price(plan).transfer_bytes == {"a>b": 6 * 60 + 6 * 8 + 500_000, "b>a": 500_000}
    assert price(plan).compute_s == {"a": 20.0, "b": 12.0}


@given(data=st.data())
def test_any_lanes_are_simulated_to_the_end(any_lanes: AnyLanes, data: st.DataObject) -> None:
    plan = data.draw(any_lanes())
    timeline = simulate(lower(plan), steps=3)
    assert len(timeline.step_ends) == 3
    assert list(timeline.step_ends) == sorted(timeline.step_ends)


@given(data=st.data())
def test_a_planner_s_program_without_words_ends_at_the_same_moments(
    any_lanes: AnyLanes, any_hiertrain: AnyLanes, data: st.DataObject
) -> None:
    """It leaves out what takes no time. Nothing else may change, not even the last digit."""
    program = lower(data.draw(st.one_of(any_lanes(), any_hiertrain(micro_batches=1))))
    bare = compile_program(program, words=False)
    full = compile_program(program)
    assert (bare.seconds, bare.bytes, bare.occupied_s) == (
        full.seconds,
        full.bytes,
        full.occupied_s,
    )
    ends = run(bare, program.plan.route == "min", 5, spans=False).step_ends
    assert ends == simulate(program, steps=5).step_ends


@given(data=st.data())
def test_a_planner_s_program_ends_at_the_same_moments_where_messages_meet_at_relays(
    any_lanes: AnyLanes, data: st.DataObject
) -> None:
    """A planner's simulation sends some messages before their turn. On equal links many messages meet at the
    same moment, and then the order decides."""
    plan = data.draw(any_lanes())
    names = [device.name for device in plan.fleet.devices]
    hubs = data.draw(
        st.lists(st.sampled_from(["h", "k"]), min_size=len(names), max_size=len(names))
    )
    links = [
        Link((name, hub), mbps, mbps, latency)
        for name, hub in zip([*names, "k"], [*hubs, "h"], strict=True)
        for mbps in [data.draw(st.sampled_from([8.0, 80.0]))]
        for latency in [data.draw(st.sampled_from([0.0, 1.0, 2.0]))]
    ]
    fleet = Fleet((*plan.fleet.devices, Device("h"), Device("k")), tuple(links))
    route: Route = data.draw(st.sampled_from(["min", "store_and_forward"]))
    program = lower(msgspec.structs.replace(plan, fleet=fleet, route=route))
    bare = compile_program(program, words=False)
    ends = run(bare, route == "min", 5, spans=False).step_ends
    assert ends == simulate(program, steps=5).step_ends


@given(data=st.data())
def test_a_period_is_no_shorter_than_the_busiest_device_and_the_busiest_channel(
    any_lanes: AnyLanes, any_hiertrain: AnyLanes, data: st.DataObject
) -> None:
    plan = data.draw(st.one_of(any_lanes(), any_hiertrain(micro_batches=1)))
    found = price(plan)
    assert found.step_s is not None
    speed = {hop.channel: hop.bytes_per_s for hop in plan.fleet.hops()}
    bound = max(
        *found.compute_s.values(),
        *(size / speed[channel] for channel, size in found.transfer_bytes.items()),
        0.0,
    )
    assert found.step_s >= bound * (1 - 1e-9)


@given(data=st.data())
def test_the_price_counts_every_byte_that_is_sent(any_lanes: AnyLanes, data: st.DataObject) -> None:
    plan = data.draw(any_lanes())
    sizes: dict[str, int] = {}
    for device, code in lower(plan).code.items():
        for i in code:
            if isinstance(i, Send):
                for hop in plan.fleet.route(device, i.dest):
                    sizes[hop.channel] = sizes.get(hop.channel, 0) + i.bytes
    assert price(plan).transfer_bytes == sizes


def tiers(make_lanes: MakeLanes, chance: random.Random) -> Plan:
    """HierTrain on devices and links that differ by up to a hundred times."""
    count = chance.randint(2, 6)
    o, s, l = chance.sample("abc", 3)  # noqa: E741
    first, second = sorted((chance.randint(1, count), chance.randint(1, count)))
    ways = (s * first + o * (count - first), o * count, l * second + o * (count - second))
    base = [10 ** chance.uniform(-3, -1) for _ in range(count)]
    times = {}
    for device in "abcd":
        own = [t / 10 ** chance.uniform(0, 2) for t in base]
        rows = (tuple(factor * t for t in own) for factor in (1.0, 2.0, 0.1))
        times[device] = DeviceTimes(*rows)
    return make_lanes(
        *((chance.randint(1, 24), way) for way in ways),
        times=times,
        layers=tuple(
            LayerCost(f"l{n}", int(10 ** chance.uniform(2, 5)), int(10 ** chance.uniform(2, 4.5)))
            for n in range(count)
        ),
        mbps={(a, b): 10 ** chance.uniform(0, 2) for a in "abcd" for b in "abcd" if a < b},
    )


def test_eager_with_pieces_pays_on_average_and_seldom_loses_much(make_lanes: MakeLanes) -> None:
    """It is a heuristic that does not see the exchange of gradients: on one plan it may lose, so
    a planner should price both orders. Measured on 500 plans: 0.946 of staged on average, 6% of them
    more than 5% slower, the worst 1.25 times; with a single piece even 1.53 times.
    """
    chance = random.Random(1)
    ratios = []
    for _ in range(150):
        plan = msgspec.structs.replace(tiers(make_lanes, chance), micro_batches=8, stream=True)
        seconds = {
            order: price(msgspec.structs.replace(plan, schedule=order)).seconds
            for order in ("staged", "eager")
        }
        ratios.append(seconds["eager"] / seconds["staged"])
    assert mean(ratios) < 1.0
    assert sum(ratio > 1.05 for ratio in ratios) <= 0.1 * len(ratios)
    assert max(ratios) < 1.35


def test_eager_with_pieces_overlaps_what_staged_does_one_after_the_other(
    make_lanes: MakeLanes,
) -> None:
    """One lane over two devices: eager is a pipeline, staged sends every gradient at the end."""
    plan = make_lanes((8, "ab"), micro_batches=8, mbps=1e3)
    staged, eager = (
        price(msgspec.structs.replace(plan, schedule=order)).seconds
        for order in ("staged", "eager")
    )
    assert eager <= staged
    assert eager == pytest.approx(2 * 8 + 2, rel=0.01)
