"""Bounds of splits: no price is below them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.plans.plan import Plan
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
    lanes = [lane[:3] for lane in split.lanes(layers, [task.source])]
    plan = Plan(
        strategy="hiertrain+",
        model=task.profile.model,
        batch=task.batch,
        mode="train",
        shards=lane_shards(layers, o, lanes),
        source=task.source,
        fleet=task.fleet,
        profile=task.profile,
        micro_batches=pieces,
        codec=coded.activations,
        gradient_codec=coded.weight_gradients,
        input_codec=coded.samples,
        schedule="eager" if eager else "staged",
        stream=stream,
        ahead=2,
    )
    assert SplitBounds(task, coded).at_least(split) <= price(plan).seconds * (1 + 1e-9)
