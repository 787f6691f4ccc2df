"""coopai+: an event model that counts what the plan does, a search that is never worse than coopai."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weft.api import plan
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Medium
from weft.planning.decide import decide
from weft.planning.task import ask
from weft.plans.plan import Plan
from weft.plans.registry import make_plan
from weft.plans.task import Task
from weft.program.memory import memory_bytes
from weft.simulate.price import price
from weft.strategies.coopai.book import Book, Weights, _queue
from weft.strategies.coopai.clock import Candidate
from weft.strategies.coopai.events import Latency, Load, MediumCost, Times
from weft.strategies.coopai.geometry import geometry_of
from weft.strategies.coopai.plus_search import Way, best_ways
from weft.strategies.coopai.polish import changes, polish
from weft.strategies.coopai.sequence import task_in_sequence
from weft.strategies.coopai.strategy import rounds_plan

MBPS = 20.0
BYTE_S = 8 / (MBPS * 1e6)


def behind_gateway(*gflops: float, mbps: float = MBPS, latency_ms: float = 0.0) -> Fleet:
    names = tuple(f"r{d}" for d in range(1, len(gflops) + 1))
    return Fleet(
        (Device("gw", "edge", 1.0, data=True),
         *(Device(n, gflops=speed) for n, speed in zip(names, gflops, strict=True))),
        medium=(Medium("wifi", "gw", names, mbps, latency_ms),),
    )  # fmt: skip


@cache
def _task(model: str, fleet: Fleet, batch: int) -> Task:
    return ask(model, fleet, mode="infer", batch=batch)


def task(model: str, fleet: Fleet, batch: int = 1, **options: Any) -> Task:
    given = {key: str(value) for key, value in options.items()}
    return dataclasses.replace(_task(model, fleet, batch), options=given)


def book_of(given: Task, states: tuple[Weights, ...]) -> Book:
    assert given.graph is not None
    k = len(states[0])
    times = [given.profile.devices[f"r{d}"].forward_s for d in range(1, k + 1)]
    return Book(geometry_of(given.graph), states, np.array(times).T)


def plan_of(given: Task, way: Way, k: int) -> Plan:
    devices = tuple(f"r{d}" for d in range(1, k + 1))
    return rounds_plan(given, "coopai+", devices, way.blocks, overlap=way.overlap)


weights = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.7]), min_size=3, max_size=3).filter(any)


@settings(deadline=None, max_examples=15)
@given(
    states=st.lists(weights.map(tuple), min_size=1, max_size=3, unique=True), overlap=st.booleans()
)
def test_the_model_s_bytes_and_seconds_are_those_of_the_plan(
    states: list[Weights], overlap: bool
) -> None:
    """Whatever the cut states: the medium and every device are taken as long as the plan says."""
    given = task_in_sequence(task("vgg-small", behind_gateway(0.5, 0.25, 1.0)))
    book = book_of(given, tuple(states))
    for way in best_ways(book, Load(MediumCost(BYTE_S)), overlap=overlap)[:2]:
        priced = price(plan_of(given, way, 3))
        busiest = max([priced.transfer_bytes["wifi"] * BYTE_S, *priced.compute_s.values()])
        if any(block.mode == "whole" for block in way.blocks):
            # what one device made alone counts as if only the gateway had it
            assert way.seconds >= busiest * (1 - 1e-6)
        else:
            assert way.seconds == pytest.approx(busiest, rel=1e-6)


@pytest.mark.parametrize("latency_ms", [0.0, 3.0])
def test_the_event_model_s_time_is_close_to_the_simulator_s(latency_ms: float) -> None:
    fleet = behind_gateway(0.5, 0.5, 0.25, 0.25, latency_ms=latency_ms)
    given = task_in_sequence(task("vgg-small", fleet))
    states = ((1.0, 1.0, 0.5, 0.5), (1.2, 1.0, 0.5, 0.4), (1.0, 0.0, 1.0, 0.0))
    ways = best_ways(book_of(given, states), Latency(MediumCost(BYTE_S, latency_ms / 1e3)))
    for way in ways[:3]:
        simulated = price(plan_of(given, way, 4)).latency_s
        assert way.seconds == pytest.approx(simulated, rel=0.05)


def test_rows_go_up_and_down_one_after_the_other() -> None:
    """Two devices, one second per byte: both are done at 0 and send 2 bytes for each other."""
    clock = Latency(MediumCost(1.0))
    start = Times((0.0, 0.0))
    plain = clock.exchange(start, [2, 2], [2, 2], [1, 0], [0, 0], [5, 5])
    assert plain.ready == (6 + 5, 8 + 5)  # up 0:2, up 2:4, down 4:6, down 6:8
    assert plain.free == 8
    overlapped = clock.exchange(start, [2, 2], [2, 2], [1, 0], [3, 9], [2, 2])
    assert overlapped.ready == (6 + 2, 9 + 2)  # the second device's inner rows take longer


def test_the_gateway_sends_as_soon_as_it_has_what_a_device_lacks() -> None:
    clock = Latency(MediumCost(1.0))
    times = clock.exchange(
        Times((0.0, 0.0, 10.0)), [1, 1, 1], [1, 1, 1], [1, 0, 1], [0] * 3, [0] * 3
    )
    assert times.ready == (3, 4, 10)  # nobody waits for the third, which is late


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_block_is_done_before_its_bound(data: st.DataObject) -> None:
    """What the search leaves out without a look could not have been kept."""
    bytes_of = st.lists(st.sampled_from([0.0, 0.0, 1.0, 3.0]), min_size=3, max_size=3)
    times = st.lists(st.sampled_from([0.0, 1.0, 2.5, 6.0]), min_size=3, max_size=3)
    ready, up, inner, outer = (data.draw(x) for x in (times, bytes_of, times, times))
    down, waits = [0.0] * 3, [-1] * 3
    for d in range(3):  # whoever lacks something has it from a device that sends
        senders = [s for s in range(3) if s != d and up[s]]
        if senders and data.draw(st.booleans()):
            down[d], waits[d] = 1.0, data.draw(st.sampled_from(senders))
    free = data.draw(st.sampled_from([0.0, 4.0]))
    queue = _queue(np.array(down), np.array(up), np.array(waits))
    for clock in (Latency(MediumCost(0.5)), Load(MediumCost(0.5))):
        done = clock.exchange(Times(tuple(ready), free), up, down, waits, inner, outer)
        bound = clock.bound(
            np.array(ready), np.array(free), queue, np.array(inner), np.array(outer)
        )
        found = clock.last(done, gathered=False), clock.mean(done, gathered=False)
        assert all(least <= exact + 1e-9 for least, exact in zip(bound, found, strict=True))


def test_vgg16_is_at_least_eight_percent_faster_than_coopai_and_sls() -> None:
    fleet = behind_gateway(*[13.6] * 10, mbps=100.0)
    seconds = {}
    for name, options in (
        ("coopai", {}), ("sls", {}), ("sls", {"overlap": "on"}),
        ("coopai+", {"polish": 20, "gateway": "off"}),
    ):  # fmt: skip
        plan = make_plan(name, task("vgg16", fleet, **options))
        seconds[name, len(options)] = price(plan).seconds
    plus = seconds.pop(("coopai+", 2))
    assert plus < 0.92 * min(seconds.values())


@settings(deadline=None, max_examples=4)
@given(
    speeds=st.lists(st.sampled_from([0.2, 0.5, 1.0]), min_size=1, max_size=4),
    mbps=st.sampled_from([2.0, 20.0, 500.0]),
)
def test_coopai_plus_is_never_slower_than_coopai_and_sls(speeds: list[float], mbps: float) -> None:
    fleet = behind_gateway(*speeds, mbps=mbps)
    plus = price(make_plan("coopai+", task("vgg-small", fleet, polish=5))).seconds
    for name in ("coopai", "sls"):
        for overlap in ("off", "on"):
            other = price(make_plan(name, task("vgg-small", fleet, overlap=overlap))).seconds
            assert plus <= other * (1 + 1e-9)


def with_gateway(gflops: float, fleet: Fleet) -> Fleet:
    gateway = msgspec.structs.replace(fleet.device("gw"), gflops=gflops)
    return msgspec.structs.replace(fleet, devices=(gateway, *fleet.devices[1:]))


def test_a_gateway_that_is_much_faster_than_its_devices_computes_alone() -> None:
    """Twenty times as fast as each of six: whatever is handed out comes back too late."""
    fleet = with_gateway(10.0, behind_gateway(*[0.5] * 6, mbps=10.0))
    plan = make_plan("coopai+", task("vgg-small", fleet))
    assert plan.devices == ("gw",)
    assert price(plan).seconds == pytest.approx(sum(plan.profile.devices["gw"].forward_s))
    assert plan.decisions["gateway"] == "computes"
    assert plan.decisions["devices"] == 0


def test_a_gateway_as_fast_as_its_devices_takes_rows() -> None:
    fleet = with_gateway(0.5, behind_gateway(0.5, 0.5, mbps=100.0))
    both, devices = (
        make_plan("coopai+", task("vgg-small", fleet, polish=20, gateway=gateway))
        for gateway in ("on", "off")
    )
    assert any(t.device == "gw" and any(t.work) for r in both.rounds for t in r.turns)
    assert all(turn.device != "gw" for r in devices.rounds for turn in r.turns)
    assert price(both).seconds < 0.9 * price(devices).seconds
    assert price(both).seconds < 0.9 * sum(both.profile.devices["gw"].forward_s)


@settings(deadline=None, max_examples=6)
@given(
    gateway=st.sampled_from([0.1, 0.5, 2.0, 10.0]),
    mbps=st.sampled_from([2.0, 20.0, 500.0]),
    objective=st.sampled_from(["latency", "throughput"]),
)
def test_with_the_gateway_no_plan_is_slower_than_the_gateway_alone(
    gateway: float, mbps: float, objective: str
) -> None:
    fleet = with_gateway(gateway, behind_gateway(0.5, 0.25, mbps=mbps))
    batch = 4 if objective == "throughput" else 1
    plan = make_plan(
        "coopai+", task("vgg-small", fleet, batch=batch, polish=3, objective=objective)
    )
    alone = batch * sum(plan.profile.devices["gw"].forward_s)
    assert price(plan).seconds <= alone * (1 + 1e-9)


def test_no_plan_is_slower_than_one_device_where_messages_take_long() -> None:
    """The paper's model knows no latency, so coopai's own choice may be many devices."""
    fleet = behind_gateway(*[0.278] * 5, mbps=991.0, latency_ms=20.0)
    asked = ask("vgg-small", fleet, mode="infer", input_shape=(1, 16, 16), classes=10)
    plus, one = (
        price(make_plan(name, dataclasses.replace(asked, options=given))).seconds
        for name, given in (("coopai+", {"gateway": "off"}), ("coopai", {"devices": "1"}))
    )
    assert plus <= one * (1 + 1e-9)


def test_rows_are_in_proportion_to_speed() -> None:
    fleet = behind_gateway(1.0, 0.25, mbps=1e5)  # sending costs nothing
    plan = make_plan("coopai+", task("vgg-small", fleet, devices=2, gateway="off"))
    shares = np.array(plan.decisions["shares"][0], dtype=float)
    assert shares[0] / shares.sum() == pytest.approx(0.8, abs=0.05)
    halves = make_plan("coopai", task("vgg-small", fleet, devices=2))
    assert price(plan).seconds < 0.5 * price(halves).seconds


def test_even_shares_stay_even() -> None:
    fleet = behind_gateway(1.0, 0.9, mbps=1e5)
    plan = make_plan("coopai+", task("vgg-small", fleet, devices=2, gateway="off", shares="even"))
    modes = zip(plan.decisions["modes"], plan.decisions["shares"], strict=True)
    rows = [shares for mode, shares in modes if mode in ("rows", "rows+data")]
    assert rows
    assert all(abs(shares[0] - shares[1]) <= 1 for shares in rows)


def test_overlap_off_means_one_turn_per_device_and_round() -> None:
    fleet = behind_gateway(*[0.5] * 3)
    plan = make_plan("coopai+", task("vgg-small", fleet, overlap="off"))
    for r in plan.rounds:
        devices = [turn.device for turn in r.turns]
        assert len(set(devices)) == len(devices)


def test_a_stream_has_frames_in_flight_and_more_of_them_come_through() -> None:
    fleet = behind_gateway(*[0.5] * 3, mbps=10.0)
    one = make_plan("coopai+", task("vgg-small", fleet, polish=20, gateway="off"))
    stream = make_plan(
        "coopai+",
        task("vgg-small", fleet, batch=8, objective="throughput", gateway="off", frames="cut"),
    )
    assert stream.micro_batches == 8
    assert stream.in_flight > 1
    assert stream.decisions["in_flight"] == stream.in_flight
    assert price(stream).seconds < 8 * price(one).seconds
    fixed = task("vgg-small", fleet, batch=8, objective="throughput", in_flight=3, frames="cut")
    assert make_plan("coopai+", fixed).in_flight == 3


def test_whole_frames_go_to_devices_in_turn_where_that_brings_more_through() -> None:
    """Computing takes long and images are small: nothing is gained by cutting them."""
    fleet = behind_gateway(*[0.5] * 4, mbps=100.0)
    given = {"batch": 16, "objective": "throughput", "gateway": "off"}
    cut = make_plan("coopai+", task("vgg-small", fleet, frames="cut", polish=5, **given))
    stream = make_plan("coopai+", task("vgg-small", fleet, polish=5, **given))
    assert stream.decisions["frames"] == [4, 4, 4, 4]
    assert price(stream).seconds < 0.9 * price(cut).seconds
    one = sum(stream.profile.devices["r1"].forward_s)
    assert price(stream).seconds < 1.1 * one * 16 / 4


def test_a_faster_device_gets_more_whole_frames() -> None:
    fleet = behind_gateway(1.5, 0.5, mbps=1000.0)
    asked = task("vgg-small", fleet, batch=8, objective="throughput", frames="whole", gateway="off")
    plan = make_plan("coopai+", asked)
    assert plan.decisions["frames"] == [6, 2]
    assert plan.rounds[0].in_turn.count(0) == 6


def test_frames_are_only_for_a_stream_and_every_device_that_is_asked_for_gets_one() -> None:
    fleet = behind_gateway(0.5, 0.5, 0.5)
    with pytest.raises(InputError, match="frames=whole is only for a stream"):
        make_plan("coopai+", task("vgg-small", fleet, frames="whole"))
    few = {"batch": 2, "objective": "throughput", "frames": "whole", "devices": 3}
    with pytest.raises(InputError, match="3 devices cannot each get a frame"):
        make_plan("coopai+", task("vgg-small", fleet, **few))


def test_more_frames_may_be_in_flight_than_the_stream_has() -> None:
    fleet = behind_gateway(0.5, 0.4)
    stream = make_plan(
        "coopai+",
        task(
            "vgg-small", fleet, batch=2, objective="throughput", in_flight=3, polish=2, frames="cut"
        ),
    )
    assert stream.in_flight == 3
    assert stream.micro_batches == 2


def test_a_stream_of_one_frame_is_refused() -> None:
    with pytest.raises(InputError, match="objective=throughput with batch = 1"):
        make_plan("coopai+", task("vgg-small", behind_gateway(0.5, 0.5), objective="throughput"))
    with pytest.raises(InputError, match="in_flight=3 is only for a stream"):
        make_plan("coopai+", task("vgg-small", behind_gateway(0.5, 0.5), batch=8, in_flight=3))


def test_a_plan_is_json_both_ways_and_the_same_again() -> None:
    given = task("resnet8", behind_gateway(0.5, 0.4, 0.3), polish=10, devices=3)
    plan = decide("coopai+", given)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    again = decide("coopai+", given)
    assert again.decisions == plan.decisions


def test_one_device_is_as_good_as_coopai_s_one_device() -> None:
    fleet = behind_gateway(0.5)
    plus, plain = (
        make_plan(s, task("vgg-small", fleet, **more))
        for s, more in (("coopai+", {"gateway": "off"}), ("coopai", {}))
    )
    assert plus.decisions["modes"] == plain.decisions["modes"] == ["whole"]


def test_a_network_whose_first_layer_cannot_be_cut_has_a_plan() -> None:
    layers = nn.Sequential(nn.Linear(12, 12), nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3))
    decided = plan(
        layers, torch.rand(1, 3, 12, 12), behind_gateway(0.5, 0.5), strategy="coopai+",
        mode="infer", options={"polish": 3, "devices": 2},
    )  # fmt: skip
    assert decided.decisions["modes"][0] == "whole"


def test_where_memory_is_short_the_plan_fits() -> None:
    """The clock knows nothing of memory: the simulator then prices every candidate."""
    ample = behind_gateway(0.5, 0.5, 0.5)
    free = make_plan("coopai+", task("vgg-small", ample, polish=3, gateway="off"))
    need = memory_bytes(free)
    least = max(size for name, size in need.items() if name != "gw") / 1e6
    replace = msgspec.structs.replace
    small = [replace(d, memory_mb=least * 0.9) for d in ample.devices if d.name != "gw"]
    tight = replace(ample, devices=(ample.device("gw"), *small))
    asked = dataclasses.replace(task("vgg-small", ample, polish=3, gateway="off"), fleet=tight)
    plan = decide("coopai+", asked)
    assert max(size for name, size in memory_bytes(plan).items() if name != "gw") <= least * 0.9e6


def test_polishing_keeps_only_what_is_faster() -> None:
    given = task_in_sequence(task("vgg-small", behind_gateway(0.5, 0.5, 0.5)))
    assert given.graph is not None
    geometry = geometry_of(given.graph)
    way = best_ways(book_of(given, ((1.0, 1.0, 1.0),)), Latency(MediumCost(BYTE_S)))[0]
    begin = Candidate(3, way.blocks, way.overlap)
    prices: list[float] = []

    def seconds(candidate: Candidate) -> float:
        devices = ("r1", "r2", "r3")
        found = price(
            rounds_plan(
                given, "coopai+", devices, candidate.blocks,
                overlap=candidate.overlap, halves=candidate.halves,
            )
        ).seconds  # fmt: skip
        prices.append(found)
        return found

    first = seconds(begin)
    found, best = polish(begin, seconds, 60, changes(geometry, overlap=True))
    assert found == seconds(best) == min(prices) <= first
