"""The chain: never worse than one device, and as the user said where the user said something."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.plans.plan import Plan
from weft.plans.registry import make_plan
from weft.plans.task import Task
from weft.simulate.price import price
from weft.strategies.chain.strategy import PIECES, neighbours
from weft.strategies.common.costs import Costs
from weft.strategies.common.stages import layer_plan

EXAMPLES = Path(__file__).parents[3] / "examples" / "fleets"


def whimsical(seed: int) -> Callable[[Plan], float]:
    """A price without rhyme or reason, but always the same for the same plan."""

    def price(plan: Plan) -> float:
        return random.Random(f"{seed} {plan.shards} {plan.micro_batches} {plan.in_flight}").uniform(
            1, 2
        )

    return price


def simulated(plan: Plan) -> float:
    return price(plan).seconds


@settings(max_examples=25)
@given(data=st.data())
def test_no_single_device_is_better_whatever_the_price_says(
    random_tasks: Callable[..., st.SearchStrategy[Task]], data: st.DataObject
) -> None:
    drawn = data.draw(random_tasks(max_layers=4, devices=4))
    ask = whimsical(data.draw(st.integers(0, 999)))
    task = Task(drawn.profile, drawn.fleet, drawn.batch, drawn.mode, "d0", ask, drawn.options)
    chosen = ask(make_plan("chain", task))
    for name, pieces in itertools.product(task.fleet.names, PIECES):
        if pieces > task.batch:
            continue
        for flying in {min(pieces, n) for n in (1, 2, pieces)}:
            alone = [name] * len(task.profile.layers)
            plan = layer_plan(task, "alone", alone, micro_batches=pieces, in_flight=flying)
            assert chosen <= ask(plan)


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_with_the_simulator_no_single_device_and_no_serial_path_is_better(
    make_task: Callable[..., Task], mode: str
) -> None:
    task = make_task(mode=mode, price=simulated)
    best = simulated(make_plan("chain", task))
    for name in ("all-device", "all-edge", "all-cloud"):
        for pieces in ("1", "4", "8"):
            other = make_task(mode=mode, price=simulated, micro_batches=pieces)
            assert best <= simulated(make_plan(name, other)) * (1 + 1e-9)
    assert best <= simulated(make_plan("jointdnn+", task)) * (1 + 1e-9)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_plan_for_every_example_fleet_uses_each_device_once(
    make_task: Callable[..., Task], path: Path, mode: str
) -> None:
    fleet = Fleet.load(path)
    speeds = {device.name: device.gflops for device in fleet.devices}
    source = fleet.data_device()
    plan = make_plan("chain", make_task(fleet=fleet, speeds=speeds, mode=mode, source=source))
    devices = [shard.device for shard in plan.shards]
    assert len(set(devices)) == len(devices)
    assert plan.decisions["devices"] == devices
    assert plan.decisions["cuts"] == [shard.layers[0] for shard in plan.shards[1:]]
    assert plan.shards[0].layers[0] == 0
    assert plan.shards[-1].layers[1] == 3


def test_two_equal_devices_on_a_fast_link_share_the_layers_evenly(
    make_task: Callable[..., Task],
) -> None:
    fleet = Fleet((Device("pi"), Device("twin")), (Link(("pi", "twin"), 1000, 1000),))
    plan = make_plan("chain", make_task(fleet=fleet, price=simulated))
    assert [shard.layers for shard in plan.shards] == [(0, 1), (2, 3)]
    assert plan.micro_batches > 1
    assert plan.in_flight > 1


def test_the_users_row_of_devices_is_kept(make_task: Callable[..., Task]) -> None:
    plan = make_plan("chain", make_task(devices="nuc, pi,cloud", price=simulated))
    assert plan.decisions["devices"] == ["nuc", "pi", "cloud"]


def test_the_users_micro_batches_and_flights_are_kept(make_task: Callable[..., Task]) -> None:
    plan = make_plan("chain", make_task(micro_batches="3", in_flight="2", codec="int8"))
    assert (plan.micro_batches, plan.in_flight, plan.codec) == (3, 2, "int8")


def test_throughput_takes_the_shortest_period(make_task: Callable[..., Task]) -> None:
    fleet = Fleet((Device("pi"), Device("twin")), (Link(("pi", "twin"), 2, 2),))
    price = simulated
    quick = make_plan("chain", make_task(fleet=fleet, mode="infer", batch=1, price=price))
    steady = make_plan(
        "chain",
        make_task(fleet=fleet, mode="infer", batch=1, price=price, objective="throughput"),
    )
    assert quick.decisions["devices"] == ["pi"], "alone there is nothing to send"
    assert len(steady.shards) == 2
    assert steady.decisions["period_s"] == pytest.approx(2.0)
    assert steady.decisions["period_s"] < quick.decisions["period_s"]
    assert steady.decisions["objective"] == "throughput"


def test_devices_out_of_reach_are_left_alone(make_task: Callable[..., Task]) -> None:
    fleet = Fleet((Device("pi"), Device("far", "cloud")))
    assert make_plan("chain", make_task(fleet=fleet, speeds={"far": 99})).devices == ("pi",)


def test_a_large_fleet_is_used_beyond_the_devices_of_which_every_order_is_tried(
    make_task: Callable[..., Task],
) -> None:
    names = [f"rpi{index}" for index in range(7)]
    fleet = Fleet(
        (Device("pi"), *(Device(name) for name in names)),
        medium=(Medium("wifi", "pi", tuple(names), 1000),),
    )
    plan = make_plan("chain", make_task(fleet=fleet, layers=8, batch=16, price=simulated))
    assert len(plan.shards) == 8


def test_layers_go_where_they_fit(make_task: Callable[..., Task]) -> None:
    fleet = Fleet(
        (Device("pi", memory_mb=3), Device("nuc", "edge", memory_mb=7)),
        (Link(("pi", "nuc"), 100, 100),),
    )
    plan = make_plan("chain", make_task(fleet=fleet))
    held = {shard.device: shard.layers[1] - shard.layers[0] + 1 for shard in plan.shards}
    assert held == {"pi": 1, "nuc": 3}, "a layer with its gradients takes 2 MB"


def test_a_network_that_fits_nowhere_is_an_error(make_task: Callable[..., Task]) -> None:
    fleet = Fleet((Device("pi", memory_mb=1),))
    with pytest.raises(WeftError, match="memory_mb"):
        make_plan("chain", make_task(fleet=fleet))


def test_a_price_of_infinity_rules_a_plan_out(make_task: Callable[..., Task]) -> None:
    def lean(plan: Plan) -> float:
        return 1.0 if plan.in_flight == 1 and plan.micro_batches == 4 else math.inf

    plan = make_plan("chain", make_task(price=lean))
    assert (plan.micro_batches, plan.in_flight) == (4, 1)
    with pytest.raises(WeftError, match="no plan"):
        make_plan("chain", make_task(price=lambda plan: math.inf))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"devices": "pi,pi"}, "devices=pi,pi"),
        ({"devices": "pi,nuk"}, "'nuk'"),
        ({"devices": ""}, "no device ''"),
        ({"micro_batches": "9"}, "from 1 up to 8"),
        ({"micro_batches": "two"}, "micro_batches=two"),
        ({"in_flight": "0"}, "in_flight=0"),
        ({"codec": "zip"}, "none, fp16, int8"),
        ({"route": "fast"}, "min, store_and_forward"),
        ({"objective": "throughput"}, "not allowed in training"),
        ({"objective": "cheap"}, "latency, throughput"),
    ],
)
def test_a_wrong_option_is_refused(
    make_task: Callable[..., Task], options: dict[str, str], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        make_plan("chain", make_task(**options))


def test_more_devices_than_layers_are_refused(make_task: Callable[..., Task]) -> None:
    with pytest.raises(InputError, match="has 2 layers"):
        make_plan("chain", make_task(layers=2, devices="pi,nuc,cloud"))


def test_neighbours_move_one_cut_and_empty_no_stage() -> None:
    assert set(neighbours(tuple("aabbc"))) == {tuple("aaabc"), tuple("abbbc"), tuple("aabcc")}
    assert neighbours(tuple("abc")) == []
    assert neighbours(("a",)) == []


@settings(max_examples=50)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_neighbours_keep_the_devices_in_order(counts: list[int]) -> None:
    assignment = tuple(d for d, n in zip("abcd", counts, strict=False) for _ in range(n))
    for near in neighbours(assignment):
        assert sorted(near) == list(near)
        assert set(near) == set(assignment)
        assert sum(a != b for a, b in zip(near, assignment, strict=True)) == 1


@pytest.mark.parametrize("wanted", [1, 9])
def test_cuts_are_moved_to_where_the_price_is_best(
    make_task: Callable[..., Task], wanted: int
) -> None:
    def price(plan: Plan) -> float:
        return 1.0 + abs(plan.decisions["cuts"][0] - wanted)

    plan = make_plan("chain", make_task(layers=10, devices="pi,nuc", price=price))
    assert plan.decisions["cuts"] == [wanted], "no programme proposes this cut"


def test_the_winner_is_at_least_as_good_as_its_neighbours(make_task: Callable[..., Task]) -> None:
    task = make_task(layers=7, price=simulated)
    plan = make_plan("chain", task)
    chosen = tuple(s.device for s in plan.shards for _ in range(s.layers[0], s.layers[1] + 1))
    assert plan.decisions["period_s"] == Costs(task).period(chosen)
    for near in neighbours(chosen):
        other = layer_plan(
            task, "chain", near, micro_batches=plan.micro_batches, in_flight=plan.in_flight
        )
        assert simulated(plan) <= simulated(other) * (1 + 1e-6)
