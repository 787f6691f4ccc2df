"""Labels at home: the period of a way there and back twice equals the simulator's, and labels stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.planning.task import make_task as task_of
from weft.plans.online import Server
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.registry import make_plan
from weft.plans.task import Task
from weft.simulate.price import price
from weft.strategies.common.costs import Costs
from weft.strategies.edgemove.home import circles
from weft.strategies.edgemove.model import period, split_costs, stage_seconds, useful_in_flight
from weft.strategies.edgemove.online.baselines import ways_of
from weft.strategies.edgemove.plus import MOST_IN_FLIGHT
from weft.strategies.edgemove.strategy import cuts_of, fleet_stages, split_plan

BATCH = 8
PER_SAMPLE = st.floats(1e-4, 3e-3)


@st.composite
def home_tasks(draw: st.DrawFn, least: int = 3) -> Task:
    """A client and a server with a link of its own each way."""
    count = draw(st.integers(least, 6))
    sizes = st.lists(st.integers(100, 100_000), min_size=count, max_size=count)
    layers = tuple(
        LayerCost(f"l{n}", weights, output)
        for n, (weights, output) in enumerate(zip(draw(sizes), draw(sizes), strict=True))
    )

    def times() -> DeviceTimes:
        forward = tuple(draw(st.lists(PER_SAMPLE, min_size=count, max_size=count)))
        return DeviceTimes(forward, tuple(2 * s for s in forward), (0.0,) * count)

    profile = Profile("drawn", 1000, layers, {"phone": times(), "edge": times()})
    up, down = draw(st.floats(1, 1000)), draw(st.floats(1, 1000))
    link = Link(("phone", "edge"), up, down, draw(st.sampled_from([0.0, 1.0, 10.0, 50.0])))
    fleet = Fleet((Device("phone", data=True), Device("edge", "edge")), (link,))
    return task_of(profile, fleet, batch=BATCH, options={"labels": "home"})


@settings(deadline=None, max_examples=80)
@given(home_tasks(), st.integers(1, MOST_IN_FLIGHT), st.data())
def test_the_period_is_that_of_the_simulator(task: Task, k: int, data: st.DataObject) -> None:
    """Labels, which ride along, are what differs."""
    costs = Costs(task)
    cut = data.draw(st.sampled_from(list(cuts_of(task, costs))))
    plan = split_plan(task, "by hand", costs, "edge", cut, k)
    assert [s.device for s in plan.shards] == ["phone", "edge", "phone"]
    assert plan.decisions["model_s"] == pytest.approx(price(plan).seconds, rel=0.01)


@settings(deadline=None, max_examples=30)
@given(home_tasks())
def test_a_live_policy_has_the_planners_numbers(task: Task) -> None:
    costs = split_costs(task.profile, "phone", "edge", BATCH, "home")
    fleet = task.fleet
    seen = Server("edge", 1.0, fleet.path_rate("phone", "edge"), fleet.path_rate("edge", "phone"),
                  2 * fleet.path_latency("phone", "edge"))  # fmt: skip
    live, planned = stage_seconds(costs, ways_of([seen])), fleet_stages(task, Costs(task), "edge")
    for k in range(1, MOST_IN_FLIGHT + 1):
        assert period(live, k)[0] == pytest.approx(period(planned, k), rel=1e-6)
    assert useful_in_flight(live)[0].tolist() == useful_in_flight(planned).tolist()
    assert live.way_s[0] == pytest.approx(planned.way_s, rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(home_tasks())
def test_edgemove_plus_is_the_best_of_all_cuts_and_counts_by_the_simulator(task: Task) -> None:
    costs = Costs(task)
    found = [
        price(split_plan(task, "by hand", costs, "edge", cut, k)).seconds
        for cut in cuts_of(task, costs)
        for k in range(1, MOST_IN_FLIGHT + 1)
    ]
    best = min([costs.total("phone"), *found])
    assert price(make_plan("edgemove+", task)).seconds <= best * 1.02


@pytest.mark.parametrize("name", ["edgemove", "edgemove+", "pipedream-e"])
def test_the_last_layer_is_never_at_the_server(name: str, make_task: Callable[..., Task]) -> None:
    """With one layer left for the server that was the last one, and the labels went there with it."""
    fleet = Fleet((Device("pi", data=True), Device("near", "edge")),
                  (Link(("pi", "near"), 0.05, 0.05),))  # fmt: skip
    for layers in (3, 4, 6):
        task = make_task(fleet=fleet, speeds={"pi": 1.0, "near": 1.1}, layers=layers, labels="home")
        assert make_plan(name, task).shards[-1].device == "pi"


def test_a_network_of_two_layers_has_none_between_first_and_last(
    make_task: Callable[..., Task],
) -> None:
    fleet = Fleet((Device("pi", data=True), Device("near", "edge")),
                  (Link(("pi", "near"), 1000, 1000),))  # fmt: skip
    task = make_task(fleet=fleet, speeds={"pi": 1.0, "near": 100.0}, layers=2, labels="home")
    assert make_plan("edgemove+", task).devices == ("pi",)
    with pytest.raises(InputError, match="labels=home gives a server the layers between"):
        make_plan("edgemove", task)


def test_a_codec_shrinks_what_comes_home_too() -> None:
    layers = tuple(LayerCost(f"l{n}", 10, 400) for n in range(4))
    times = DeviceTimes((1.0,) * 4, (2.0,) * 4, (0.0,) * 4)
    profile = Profile("four", 100, layers, {"phone": times, "edge": times})
    plain = split_costs(profile, "phone", "edge", 10, "home")
    coded = plain.coded("fp16")
    assert plain.home is not None
    assert coded.home is not None
    assert coded.home.output_bytes == plain.home.output_bytes / 2
    assert plain.worker_bytes.tolist() == [30, 20, 10, 0, 0]
    assert plain.most_cut == 2


def test_every_circle_spans_at_least_one_tick_whatever_is_in_flight() -> None:
    for stale in range(12):
        behind = (stale + 1) // 2
        ticks = np.array([c.constant + c.behind * behind + c.stale * stale for c in circles()])
        assert ticks.min() >= 1, stale
