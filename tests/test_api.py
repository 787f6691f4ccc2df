"""From Python: plan a module for a fleet, print the plan, compare strategies."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest
import torch
from torch import nn

import weft
from weft.errors import InputError
from weft.fleet.parse import parse_fleet
from weft.planning.compare import compare
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans import registry
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.plans.task import Task

FLEET = parse_fleet("""
[[device]]
name = "phone"
gflops = 2.0
memory_mb = 100
[[device]]
name = "server"
tier = "edge"
gflops = 50.0
[[link]]
between = ["phone", "server"]
mbps = 20.0
""")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 26 * 26, 32), nn.Linear(32, 10)
    )


@pytest.fixture(scope="module")
def task() -> Task:
    graph = weft.capture(network(), torch.zeros(2, 1, 28, 28), name="small")
    return make_task(derive_profile(graph, FLEET), FLEET, batch=16, graph=graph)


def test_a_module_is_planned_priced_and_printed() -> None:
    plan = weft.plan(network(), torch.zeros(2, 1, 28, 28), FLEET, strategy="all-edge", batch=16)
    assert plan.predicted is not None
    assert plan.predicted.step_s is not None
    assert plan.source == "phone"
    assert "all-edge" in str(plan)
    assert "server" in str(plan)


def test_options_may_be_numbers() -> None:
    plan = weft.plan(
        network(), torch.zeros(2, 1, 28, 28), FLEET,
        strategy="all-edge", batch=16, options={"micro_batches": 4},
    )  # fmt: skip
    assert plan.micro_batches == 4


def test_a_measured_profile_takes_the_place_of_gflops(task: Task) -> None:
    slow = {name: times.scaled(10) for name, times in task.profile.devices.items()}
    profile = msgspec.structs.replace(task.profile, devices=slow)
    example = torch.zeros(2, 1, 28, 28)
    derived, given = (
        weft.plan(network(), example, FLEET, strategy="all-device", batch=16, profile=p)
        for p in (None, profile)
    )
    assert derived.predicted is not None
    assert given.predicted is not None
    assert given.predicted.seconds == pytest.approx(10 * derived.predicted.seconds)


def test_no_strategy_is_given_a_batch_below_one() -> None:
    for batch in (0, -1):
        with pytest.raises(InputError, match="must be at least 1"):
            weft.plan(network(), torch.zeros(2, 1, 28, 28), FLEET, batch=batch)


def test_a_plan_too_large_for_the_fleet_costs_infinitely_much(task: Task) -> None:
    plan = decide("all-device", task)
    tiny = parse_fleet(
        '[[device]]\nname = "phone"\ngflops = 2\nmemory_mb = 0.01\n'
        '[[device]]\nname = "server"\ntier = "edge"\ngflops = 50\n'
        '[[link]]\nbetween = ["phone", "server"]\nmbps = 20'
    )
    small = msgspec.structs.replace(plan, fleet=tiny)
    assert task.price(plan) < float("inf")
    assert task.price(small) == float("inf")


def test_comparing_all_leaves_out_strategies_for_another_mode(task: Task) -> None:
    rows = compare(task)
    known = {name for name in registry.names() if "train" in registry.get(name).modes}
    assert {row.strategy for row in rows} == known


def test_an_option_that_no_compared_strategy_has_is_refused(task: Task) -> None:
    other = make_task(task.profile, FLEET, batch=16, options={"speed": 9})
    with pytest.raises(InputError, match="none of the compared strategies has an option 'speed'"):
        compare(other, ["all-edge"])


def test_the_function_and_the_package_share_the_name_plan() -> None:
    assert callable(weft.plan)
    assert "chain" in registry.names()


def test_importing_weft_imports_neither_torch_nor_matplotlib() -> None:
    code = "import sys, weft; print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_what_weft_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = weft.nothing


def test_a_defect_of_one_strategy_is_a_row_and_the_others_are_compared(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(task: Task) -> Plan:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setitem(
        registry.STRATEGIES, "all-edge", replace(registry.get("all-edge"), decide=broken)
    )
    rows = {row.strategy: row for row in compare(task, ["all-edge", "all-device"])}
    assert rows["all-edge"].why_not == "internal error: ZeroDivisionError: division by zero"
    assert rows["all-device"].seconds is not None
