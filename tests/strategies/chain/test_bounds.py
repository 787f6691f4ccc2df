"""Bounds: no price is below them, so a candidate that they leave out could not have won."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies.costly import costly
from weft.plans.task import Task
from weft.simulate.price import price
from weft.strategies.chain.bounds import Bounds
from weft.strategies.chain.strategy import Choice, Search, proposals
from weft.strategies.common.costs import Costs

CODECS = st.sampled_from([{}, {"codec": "int8"}, {"codec": "int8", "input_codec": "int8"}])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_pipeline_is_priced_below_its_bound(
    random_tasks: Callable[..., st.SearchStrategy[Task]], data: st.DataObject
) -> None:
    task = costly(data, data.draw(random_tasks(max_layers=4, devices=4)))
    task = dataclasses.replace(task, options={**task.options, **data.draw(CODECS)})
    costs = Costs(task)
    search = Search(task, costs, throughput=False)
    order = data.draw(st.permutations(task.fleet.names))
    count = data.draw(st.integers(1, min(len(order), costs.layers)))
    within = st.sets(st.integers(1, costs.layers - 1), min_size=count - 1, max_size=count - 1)
    places = sorted(data.draw(within)) if count > 1 else []
    ends = pairwise([0, *places, costs.layers])
    assignment = tuple(name for name, (a, b) in zip(order, ends, strict=False) for _ in range(a, b))
    bounds = Bounds(task, costs)
    for step in search.ladder(assignment):
        seconds = price(search.plan(Choice(assignment, *step))).seconds
        assert bounds.computing(assignment) <= seconds * (1 + 1e-9)
        assert bounds.at_least(assignment, *step) <= seconds * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_leaving_out_by_bounds_chooses_the_plan_that_pricing_all_chooses(
    random_tasks: Callable[..., st.SearchStrategy[Task]], data: st.DataObject
) -> None:
    drawn = costly(data, data.draw(random_tasks(max_layers=4, devices=4)))
    task = dataclasses.replace(drawn, price=lambda plan: price(plan).seconds, simulated=True)
    costs = Costs(task)
    candidates = proposals(task, costs)
    bounded, whole = (Search(task, costs, throughput=False) for _ in range(2))
    whole.bounded = False
    for search in (bounded, whole):
        search.survey(candidates)
        search.move_cuts()
    assert bounded.best == whole.best
    assert bounded.value == whole.value
    assert len(bounded.prices) <= len(whole.prices)
