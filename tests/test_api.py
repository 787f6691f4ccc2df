"""From Python: plan a module for a fleet, print the plan, compare strategies."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import weft
from weft.errors import InputError
from weft.fleet.parse import parse_fleet
from weft.plans import registry
from weft.plans.derive import derive_profile

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


def test_a_module_is_planned_priced_and_printed() -> None:
    plan = weft.plan(network(), torch.zeros(2, 1, 28, 28), FLEET, strategy="all-edge", batch=16)
    assert plan.predicted is not None
    assert plan.predicted.step_s is not None
    assert plan.source == "phone"
    assert "all-edge" in str(plan)
    assert "server" in str(plan)


def test_a_plan_draws_itself(tmp_path: Path) -> None:
    plan = weft.plan(network(), torch.zeros(2, 1, 28, 28), FLEET, strategy="all-edge", batch=16)
    plan.draw(tmp_path / "plan.svg")
    assert "server" in (tmp_path / "plan.svg").read_text(encoding="utf-8")


def test_options_may_be_numbers() -> None:
    plan = weft.plan(
        network(), torch.zeros(2, 1, 28, 28), FLEET,
        strategy="all-edge", batch=16, options={"micro_batches": 4},
    )  # fmt: skip
    assert plan.micro_batches == 4


def test_a_measured_profile_takes_the_place_of_gflops() -> None:
    example = torch.zeros(2, 1, 28, 28)
    fast = derive_profile(weft.capture(network(), example), FLEET)
    slow = {name: times.scaled(10) for name, times in fast.devices.items()}
    profile = msgspec.structs.replace(fast, devices=slow)
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


def test_the_function_plan_is_no_package() -> None:
    assert callable(weft.plan)
    assert "chain" in registry.names()


def test_a_plan_prints_one_line_where_nothing_else_is_imported() -> None:
    plan = weft.plan(network(), torch.zeros(2, 1, 28, 28), FLEET, strategy="all-edge", batch=16)
    code = (
        "import sys, msgspec; from weft.plans.plan import Plan;"
        "print(msgspec.json.decode(sys.stdin.buffer.read(), type=Plan))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=msgspec.json.encode(plan),
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.startswith(b"all-edge: sequential, batch 16, on phone, server"), done.stderr


@pytest.mark.parametrize("name", ["plan", "train", "serve", "capture", "load_model"])
def test_help_shows_what_a_function_takes(name: str) -> None:
    function = getattr(weft, name)
    assert name in dir(weft)
    assert name in weft.__all__
    assert len(inspect.signature(function).parameters) >= 2
    assert function.__doc__


def test_dir_lists_all_that_there_is_before_anything_is_asked_for() -> None:
    code = "import weft; print(*dir(weft))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert set(weft.__all__) <= set(done.stdout.split()), done.stderr


def test_errors_are_exported() -> None:
    assert issubclass(weft.InputError, weft.WeftError)
    assert issubclass(weft.LostDevice, weft.WeftError)
    with pytest.raises(weft.InputError, match="unknown strategy 'none'"):
        weft.plan(network(), torch.zeros(2, 1, 28, 28), FLEET, strategy="none")


def test_importing_weft_imports_nothing_heavy() -> None:
    """Nor a planner: a node imports parts of Weft."""
    heavy = "('torch', 'matplotlib', 'numpy', 'weft.api', 'weft.plans', 'weft.planning')"
    code = f"import sys, weft, weft.fleet; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_what_weft_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = weft.nothing
