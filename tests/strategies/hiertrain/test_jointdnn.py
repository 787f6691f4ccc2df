"""JointDNN is exact: no assignment of layers to its workers is shorter under the serial model."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.plans.registry import make_plan
from weft.plans.task import Task
from weft.simulate.price import price
from weft.strategies.common.costs import Costs
from weft.strategies.hiertrain.jointdnn import serial_seconds, shortest_path

SHRINK = {"none": (1, 0), "fp16": (2, 0), "int8": (4, 8)}  # times smaller, bytes more


def coded(task: Task, raw: int) -> int:
    smaller, more = SHRINK[task.options.get("codec", "none")]
    return -(-raw // smaller) + more


def naive_seconds(task: Task, assignment: tuple[str, ...]) -> float:
    """The serial model in plain words: samples in, layers and changes of worker, answer out."""
    profile, fleet, batch = task.profile, task.fleet, task.batch

    def send(source: str, dest: str, size: int) -> float:
        if source == dest or size == 0:
            return 0.0
        hops = fleet.route(source, dest)
        spans = [size / hop.bytes_per_s for hop in hops]
        cut_through = task.options.get("route", "min") == "min"
        return (max(spans) if cut_through else sum(spans)) + sum(hop.latency_s for hop in hops)

    total = send(task.source, assignment[0], batch * profile.input_bytes)
    for layer, worker in enumerate(assignment):
        times = profile.devices[worker]
        total += times.forward(layer, layer, batch)
        if task.mode == "train":
            total += times.backward(layer, layer, batch) + times.update(layer, layer)
        if layer and assignment[layer - 1] != worker:
            before = assignment[layer - 1]
            total += send(before, worker, coded(task, batch * profile.cut_bytes(layer)))
            if task.mode == "train":
                total += send(worker, before, coded(task, batch * profile.gradient_bytes(layer)))
    if task.mode == "infer":
        answer = batch * profile.cut_bytes(len(assignment))
        total += send(assignment[-1], task.source, coded(task, answer))
    return total


@pytest.mark.parametrize(
    ("strategy", "workers"), [("jointdnn", ("d0", "d2")), ("jointdnn+", ("d0", "d1", "d2"))]
)
@settings(max_examples=50)
@given(data=st.data())
def test_it_equals_brute_force_over_all_assignments(
    random_tasks: Callable[..., st.SearchStrategy[Task]],
    strategy: str,
    workers: tuple[str, ...],
    data: st.DataObject,
) -> None:
    task = data.draw(random_tasks(max_layers=5, devices=3))
    # Where every plan has the same price, the serial model alone decides.
    task = dataclasses.replace(task, price=lambda plan: 1.0)
    layers = len(task.profile.layers)
    best = min(naive_seconds(task, way) for way in itertools.product(workers, repeat=layers))
    plan = make_plan(strategy, task)
    chosen = tuple(s.device for s in plan.shards for _ in range(s.layers[0], s.layers[1] + 1))
    assert len(chosen) == layers
    assert naive_seconds(task, chosen) == pytest.approx(best)
    assert plan.decisions["serial_s"] == pytest.approx(best)
    assert (plan.route, plan.codec) == (task.options["route"], task.options["codec"])


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_the_plus_is_never_slower_by_the_simulator(
    random_tasks: Callable[..., st.SearchStrategy[Task]], data: st.DataObject
) -> None:
    """The serial model does not see that an update overlaps with the gradients' way."""
    task = dataclasses.replace(data.draw(random_tasks(devices=3)), price=lambda p: price(p).seconds)
    plus, plain = (task.price(make_plan(name, task)) for name in ("jointdnn+", "jointdnn"))
    assert plus <= plain * (1 + 1e-9)


@settings(max_examples=50)
@given(data=st.data())
def test_the_length_of_a_path_is_what_the_path_says(
    random_tasks: Callable[..., st.SearchStrategy[Task]], data: st.DataObject
) -> None:
    task = data.draw(random_tasks())
    costs = Costs(task)
    seconds, path = shortest_path(costs, task.fleet.names)
    assert seconds == pytest.approx(serial_seconds(costs, path))
    assert seconds == pytest.approx(naive_seconds(task, path))


def test_the_edge_server_is_used_only_by_the_plus(make_task: Callable[..., Task]) -> None:
    fleet = Fleet(
        (Device("pi"), Device("nuc", "edge"), Device("cloud", "cloud")),
        (Link(("pi", "nuc"), 1000, 1000), Link(("nuc", "cloud"), 0.001, 0.001)),
    )
    task = make_task(fleet=fleet)
    assert make_plan("jointdnn", task).devices == ("pi",)
    assert make_plan("jointdnn+", task).decisions["devices"] == ["nuc"]


def test_the_fastest_device_of_a_tier_stands_for_it(make_task: Callable[..., Task]) -> None:
    names = ("slow", "fast", "far")
    fleet = Fleet(
        (Device("pi"), *(Device(name, "cloud") for name in names)),
        (Link(("pi", "slow"), 100, 100), Link(("pi", "fast"), 100, 100)),
    )
    task = make_task(fleet=fleet, speeds={"slow": 10, "fast": 20, "far": 99})
    assert make_plan("jointdnn", task).decisions["workers"] == ["pi", "fast"]


def test_at_equal_cost_the_layer_stays(make_task: Callable[..., Task]) -> None:
    task = make_task(speeds={"pi": 1, "nuc": 1, "cloud": 1})
    free = tuple(msgspec.structs.replace(layer, output_bytes=0) for layer in task.profile.layers)
    profile = msgspec.structs.replace(task.profile, layers=free, input_bytes=0)
    costs = Costs(dataclasses.replace(task, profile=profile))
    assert shortest_path(costs, ("pi", "nuc", "cloud"))[1] == ("pi",) * 4


def test_a_fleet_without_the_tier_is_refused(make_task: Callable[..., Task]) -> None:
    fleet = Fleet((Device("pi"), Device("pj")), (Link(("pi", "pj"), 1, 1),))
    for name, says in (("jointdnn", "tier 'cloud'"), ("jointdnn+", "'edge' or 'cloud'")):
        with pytest.raises(InputError, match=says):
            make_plan(name, make_task(fleet=fleet))


def test_an_edge_without_a_cloud_is_enough_for_the_plus(make_task: Callable[..., Task]) -> None:
    fleet = Fleet((Device("pi"), Device("nuc", "edge")), (Link(("pi", "nuc"), 100, 100),))
    assert make_plan("jointdnn+", make_task(fleet=fleet)).decisions["workers"] == ["pi", "nuc"]
