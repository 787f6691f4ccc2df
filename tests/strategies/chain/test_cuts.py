"""The cutting programmes are exact for a row of devices and over all rows."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.plans.task import Task
from weft.strategies.chain.cuts import Cutting, Goal, best_cuts, bottleneck, cuttings, serial
from weft.strategies.common.costs import Costs
from weft.strategies.hiertrain.jointdnn import serial_seconds

SHRINK = {"none": (1, 0), "fp16": (2, 0), "int8": (4, 8)}
Tasks = Callable[..., st.SearchStrategy[Task]]


def all_cuts(layers: int, stages: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(1, layers), stages - 1))


def naive_bottleneck(task: Task, order: tuple[str, ...], cuts: tuple[int, ...]) -> float:
    """The busiest stage, or the busiest channel of a single message and its gradients."""
    profile, batch = task.profile, task.batch
    smaller, more = SHRINK[task.options["codec"]]
    train = task.mode == "train"
    ends = [0, *cuts, len(profile.layers)]
    loads = [0.0]
    for device, first, end in zip(order, ends[:-1], ends[1:], strict=True):
        times = profile.devices[device]
        spent = times.forward(first, end - 1, batch)
        if train:
            spent += times.backward(first, end - 1, batch) + times.update(first, end - 1)
        loads.append(spent)

    def message(cut: int, before: str, after: str) -> None:
        there = batch * profile.cut_bytes(cut)
        back = batch * profile.gradient_bytes(cut)
        if cut:
            there, back = -(-there // smaller) + more, -(-back // smaller) + more
        taken: dict[str, float] = defaultdict(float)
        for hop in task.fleet.route(before, after):
            taken[hop.channel] += there / hop.bytes_per_s
        for hop in task.fleet.route(after, before) if train else ():
            taken[hop.channel] += back / hop.bytes_per_s
        loads.extend(taken.values())

    message(0, task.source, order[0])
    for cut, before, after in zip(cuts, order, order[1:], strict=False):
        message(cut, before, after)
    if not train:
        message(len(profile.layers), order[-1], task.source)
    return max(loads)


@settings(max_examples=50)
@given(data=st.data())
def test_the_bottleneck_of_a_given_row_equals_brute_force(
    random_tasks: Tasks, data: st.DataObject
) -> None:
    task = data.draw(random_tasks(max_layers=6, devices=4))
    order = tuple(data.draw(st.permutations(task.fleet.names)))[: data.draw(st.integers(1, 4))]
    ways = all_cuts(len(task.profile.layers), len(order))
    costs = Costs(task)
    found = best_cuts(costs, bottleneck(costs), order)
    if not ways:
        assert found is None
        return
    assert found is not None
    assert found.order == order
    best = min(naive_bottleneck(task, order, cuts) for cuts in ways)
    assert found.value == pytest.approx(best)
    assert naive_bottleneck(task, order, found.cuts) == pytest.approx(best)


@settings(max_examples=50)
@given(data=st.data())
def test_the_serial_time_of_a_given_row_equals_brute_force(
    random_tasks: Tasks, data: st.DataObject
) -> None:
    task = data.draw(random_tasks(max_layers=6, devices=3))
    order = tuple(data.draw(st.permutations(task.fleet.names)))
    layers = len(task.profile.layers)
    costs = Costs(task)
    found = best_cuts(costs, serial(costs), order)
    ways = [Cutting(0, order, cuts).assignment(layers) for cuts in all_cuts(layers, 3)]
    if found is None:
        assert not ways
        return
    best = min(serial_seconds(costs, way) for way in ways)
    assert found.value == pytest.approx(best)
    assert serial_seconds(costs, found.assignment(layers)) == pytest.approx(best)


@settings(max_examples=50)
@given(data=st.data())
def test_every_row_of_devices_is_tried(random_tasks: Tasks, data: st.DataObject) -> None:
    task = data.draw(random_tasks(max_layers=4, devices=4))
    names, layers, costs = task.fleet.names, len(task.profile.layers), Costs(task)
    found = list(cuttings(costs, bottleneck(costs), lambda o: [n for n in names if n not in o]))
    orders = [o for k in range(1, layers + 1) for o in itertools.permutations(names, min(k, 4))]
    assert {row.order for row in found} == set(orders)
    best = min(
        naive_bottleneck(task, order, cuts)
        for order in set(orders)
        for cuts in all_cuts(layers, len(order))
    )
    assert min(row.value for row in found) == pytest.approx(best)


@settings(max_examples=50)
@given(data=st.data())
def test_the_period_is_never_below_the_bottleneck(random_tasks: Tasks, data: st.DataObject) -> None:
    """The period adds up messages that share a channel; the programme sees each on its own."""
    task = data.draw(random_tasks(max_layers=5, devices=3))
    costs = Costs(task)
    row = best_cuts(costs, bottleneck(costs), task.fleet.names[: costs.layers])
    assert row is not None
    assert costs.period(row.assignment(costs.layers)) >= row.value * (1 - 1e-9)


@pytest.mark.parametrize("goal", [bottleneck, serial])
def test_a_stage_that_does_not_fit_is_never_cut(
    make_task: Callable[..., Task], goal: Callable[[Costs], Goal]
) -> None:
    fleet = Fleet((Device("pi", memory_mb=4), Device("nuc", "edge")), (Link(("pi", "nuc"), 1, 1),))
    task = make_task(fleet=fleet, speeds={"pi": 100, "nuc": 0.01})
    costs = Costs(task)
    found = best_cuts(costs, goal(costs), ("pi", "nuc"))
    assert found is not None
    assert found.cuts == (2,), "two layers of 1 MB with their gradients fill the pi"
    assert best_cuts(costs, goal(costs), ("pi",)) is None


def test_inference_keeps_no_gradients(make_task: Callable[..., Task]) -> None:
    fleet = Fleet((Device("pi", memory_mb=4),))
    assert Costs(make_task(fleet=fleet, mode="infer")).fits("pi", 0, 3)
    assert not Costs(make_task(fleet=fleet, mode="train")).fits("pi", 0, 2)


def test_cuts_become_a_device_for_every_layer() -> None:
    assert Cutting(0, ("a", "b"), (1,)).assignment(3) == ("a", "b", "b")
    assert Cutting(0, ("a",), ()).assignment(2) == ("a", "a")


def test_a_message_over_a_shared_medium_takes_it_twice(make_task: Callable[..., Task]) -> None:
    fleet = Fleet(
        tuple(Device(name) for name in ("pi", "a", "b")),
        medium=(Medium("wifi", "pi", ("a", "b"), 8),),
    )
    costs = Costs(make_task(fleet=fleet))
    assert costs.load(1, "a", "b") == pytest.approx(4 * 8 * 10_000 / 1e6), "two hops, two ways"
    assert costs.load(1, "pi", "b") == pytest.approx(2 * 8 * 10_000 / 1e6)
    assert math.isclose(costs.cross(1, "a", "b"), 2 * 8 * 10_000 / 1e6), "cut-through"
