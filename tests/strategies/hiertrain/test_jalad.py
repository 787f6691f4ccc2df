"""JALAD's cut is the best one under the serial model, with a quarter of the bytes on the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.plans.plan import Shard
from weft.plans.registry import make_plan
from weft.plans.task import Task


def naive_seconds(task: Task, m: int) -> float:
    """Layers 0..m-1 on the edge (d1), the others in the cloud (d2), one thing at a time; the two make
    their updates at once."""
    profile, batch, layers = task.profile, task.batch, len(task.profile.layers)
    train = task.mode == "train"

    def send(source: str, dest: str, size: float) -> float:
        hops = task.fleet.route(source, dest)
        if size == 0 or not hops:
            return 0.0
        spans = [size / hop.bytes_per_s for hop in hops]
        cut_through = task.options.get("route", "min") == "min"
        return (max(spans) if cut_through else sum(spans)) + sum(hop.latency_s for hop in hops)

    def quarter(size: int) -> int:
        return -(-batch * size // 4) + 8  # and a scale and a zero point

    total = send(task.source, "d1" if m else "d2", batch * profile.input_bytes)
    updates = {"d1": 0.0, "d2": 0.0}
    for layer in range(layers):
        worker = "d1" if layer < m else "d2"
        times = profile.devices[worker]
        total += times.forward(layer, layer, batch)
        if train:
            total += times.backward(layer, layer, batch)
            updates[worker] += times.update(layer, layer)
    total += max(updates.values())
    if 0 < m < layers:
        total += send("d1", "d2", quarter(profile.cut_bytes(m)))
        if train:
            total += send("d2", "d1", quarter(profile.gradient_bytes(m)))
    if not train:
        total += send("d2" if m < layers else "d1", task.source, quarter(profile.cut_bytes(layers)))
    return total


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_it_equals_brute_force_over_all_cuts(
    random_tasks: Callable[..., st.SearchStrategy[Task]], data: st.DataObject
) -> None:
    drawn = data.draw(random_tasks(max_layers=6, devices=3))
    task = dataclasses.replace(drawn, options={"route": drawn.options["route"]})
    layers = len(task.profile.layers)
    plan = make_plan("jalad", task)
    seconds = [naive_seconds(task, m) for m in range(layers + 1)]
    cut = plan.decisions["cut"]
    assert seconds[cut] == pytest.approx(min(seconds), rel=1e-9)
    assert plan.decisions["serial_s"] == pytest.approx(min(seconds), rel=1e-9)
    held = [s.device for s in plan.shards for _ in range(s.layers[0], s.layers[1] + 1)]
    assert held == ["d1"] * cut + ["d2"] * (layers - cut)
    assert (plan.codec, plan.route, plan.mode) == ("int8", task.options["route"], task.mode)


def fleet(up: float, through: float) -> Fleet:
    return Fleet(
        (Device("pi"), Device("nuc", "edge"), Device("cloud", "cloud")),
        (Link(("pi", "nuc"), up, up), Link(("nuc", "cloud"), through, through)),
    )


def test_a_fast_link_means_all_cloud_and_a_dead_one_all_edge(
    make_task: Callable[..., Task],
) -> None:
    far = make_plan("jalad", make_task(fleet=fleet(1e4, 1e4)))
    assert (far.shards, far.decisions["cut"]) == ((Shard("cloud", (0, 3)),), 0)
    near = make_plan("jalad", make_task(fleet=fleet(1e4, 1e-4)))
    assert (near.shards, near.decisions["cut"]) == ((Shard("nuc", (0, 3)),), 4)


def test_between_the_two_a_cut_pays_that_would_not_at_full_width(
    make_task: Callable[..., Task],
) -> None:
    # The samples have four times the bytes of a cut, 16 times with 8 bits for each number.
    task = make_task(fleet=fleet(1e4, 0.1), batch=8)
    plan = make_plan("jalad", task)
    assert plan.decisions["devices"] == ["nuc", "cloud"]
    whole = dataclasses.replace(task, options={"codec": "none"})
    assert make_plan("jointdnn+", whole).decisions["devices"] == ["nuc"]


def test_the_codec_is_part_of_the_strategy(make_task: Callable[..., Task]) -> None:
    assert make_plan("jalad", make_task(codec="int8")).codec == "int8"
    with pytest.raises(InputError, match=r"codec=fp16 is not allowed; it must be one of int8"):
        make_plan("jalad", make_task(codec="fp16"))


def test_it_may_be_pipelined_like_the_others(make_task: Callable[..., Task]) -> None:
    plan = make_plan("jalad", make_task(micro_batches="4"))
    assert (plan.micro_batches, plan.in_flight, plan.ahead) == (4, 4, 2)


def test_a_fleet_without_an_edge_is_refused(make_task: Callable[..., Task]) -> None:
    devices = (Device("pi"), Device("cloud", "cloud"))
    task = make_task(fleet=Fleet(devices, (Link(("pi", "cloud"), 1, 1),)))
    with pytest.raises(InputError, match="jalad needs a device of tier 'edge'"):
        make_plan("jalad", task)
