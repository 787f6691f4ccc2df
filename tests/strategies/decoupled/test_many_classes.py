"""Planning for peers stays quick with a thousand classes: its work grows with them, not with their square."""

from __future__ import annotations

import cProfile
import pstats

import pytest

from weft.fleet.fleet import Device, Fleet, Link
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_times
from weft.plans.profile import LayerCost, Profile

NAMES = "abcd"
FLEET = Fleet(
    tuple(Device(name, gflops=2.0, data=name == "a") for name in NAMES),
    tuple(Link((a, b), 100.0, 100.0) for a in NAMES for b in NAMES if a < b),
)


def calls_to_plan(strategy: str, classes: int) -> int:
    """How many functions are called to decide and price a plan: the same on every machine."""
    layers = tuple(
        LayerCost(f"layer{i}", 4000, 400 if i < 5 else 4 * classes, forward_flops=1e6)
        for i in range(6)
    )
    times = {name: derive_times(layers, 2.0) for name in NAMES}
    task = make_task(Profile("wide", 400, layers, times), FLEET, batch=8)
    profile = cProfile.Profile()
    profile.runcall(decide, strategy, task)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize("strategy", ["decoupled", "decoupled+"])
def test_four_times_the_classes_take_about_four_times_the_work(strategy: str) -> None:
    calls_to_plan(strategy, 20)  # what is imported or compiled once
    few, many = calls_to_plan(strategy, 250), calls_to_plan(strategy, 1000)
    assert many < 6 * few
    assert many < 3_000_000
