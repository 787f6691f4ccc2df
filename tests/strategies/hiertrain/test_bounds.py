"""Bounds of splits: no price is below them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.fleet.fleet import Device, Fleet, Link
from weft.planning.task import make_task
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.task import Task
from weft.simulate.price import price
from weft.strategies.hiertrain.bounds import SplitBounds
from weft.strategies.hiertrain.coding import Codecs
from weft.strategies.hiertrain.splits import Split
from weft.strategies.hiertrain.strategy import lane_shards


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_split_is_priced_below_its_bound(
    random_tasks: Callable[..., st.SearchStrategy[Task]], data: st.DataObject
) -> None:
    task = data.draw(random_tasks(max_layers=4, devices=3).filter(lambda t: t.mode == "train"))
    task = dataclasses.replace(task, simulated=True)
    layers = len(task.profile.layers)
    o, *others = data.draw(st.permutations(task.fleet.names))
    ends = sorted(data.draw(st.integers(0, task.batch)) for _ in others)
    shares = [b - a for a, b in zip([0, *ends], [*ends, task.batch], strict=True)]
    cuts = tuple(data.draw(st.integers(1, layers)) for _ in others)
    coded = Codecs(*(data.draw(st.sampled_from(["none", "int8"])) for _ in range(3)))
    pieces = data.draw(st.integers(1, task.batch))
    eager, stream = data.draw(st.booleans()), data.draw(st.booleans())
    split = Split(o, tuple(others), cuts, (tuple(shares),), pieces, eager, stream)
    assert SplitBounds(task, coded).at_least(split) <= price(
        plan_of(task, split, coded)
    ).seconds * (1 + 1e-9)


def plan_of(task: Task, split: Split, coded: Codecs) -> Plan:
    """The plan that hiertrain+ makes of a split."""
    layers = len(task.profile.layers)
    lanes = [lane[:3] for lane in split.lanes(layers, [task.source])]
    return Plan(
        strategy="hiertrain+",
        model=task.profile.model,
        batch=task.batch,
        mode="train",
        shards=lane_shards(layers, split.o, lanes),
        source=task.source,
        fleet=task.fleet,
        profile=task.profile,
        micro_batches=split.pieces,
        codec=coded.activations,
        gradient_codec=coded.weight_gradients,
        input_codec=coded.samples,
        schedule="eager" if split.eager else "staged",
        stream=split.stream,
        ahead=2,
    )


def test_a_device_with_all_layers_and_more_samples_adds_up_the_gradients() -> None:
    """Seen: the bound let all weights go to o, over the slow link of the hub, and was above the price."""
    times = DeviceTimes((1e-6,), (1e-6,), (0.0,))
    fleet = Fleet(
        tuple(Device(name, data=name == "hub") for name in ("hub", "o", "one", "two", "three")),
        tuple(
            Link(("hub", name), mbps, mbps)
            for name, mbps in (("o", 8), ("one", 800), ("two", 800), ("three", 800))
        ),
    )
    profile = Profile(
        "net", 4, (LayerCost("dense", 1_000_000, 4),), dict.fromkeys(fleet.names, times)
    )
    task = make_task(profile, fleet, batch=8)
    split = Split("o", ("hub", "one", "two", "three"), (1, 1, 1, 1), ((1, 4, 1, 1, 1),))
    coded = Codecs("none", "none", "none")
    assert SplitBounds(task, coded).at_least(split) <= price(plan_of(task, split, coded)).seconds
