"""Plans for the loss of a device, made before it is lost."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from weft.errors import WeftError
from weft.runtime.run.ahead import Made, PlansAhead, Present

ALL, PI = frozenset({"pi", "nuc"}), frozenset({"pi"})


class Planner:
    def __init__(self) -> None:
        self.asked: list[Present] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, present: Present) -> Made:
        self.asked.append(present)
        assert self.may_go_on.wait(60)
        if not present:
            raise WeftError("nobody is left")
        plan: Any = sorted(present)
        return plan, ""


def test_each_plan_is_made_once() -> None:
    planner = Planner()
    plans = PlansAhead(planner)
    known: Any = "the plan that the run began with"
    plans.remember(ALL, (known, ""))
    assert plans.of(ALL) == (known, "")
    assert plans.of(PI) == plans.of(PI) == (["pi"], "")
    assert planner.asked == [PI]


def test_a_plan_is_there_before_it_is_needed() -> None:
    planner = Planner()
    plans = PlansAhead(planner)
    plans.consider([PI])
    assert plans.of(PI) == (["pi"], "")
    assert planner.asked == [PI]


def test_who_needs_a_plan_that_is_being_made_waits_for_it() -> None:
    planner = Planner()
    planner.may_go_on.clear()
    plans = PlansAhead(planner)
    plans.consider([PI])
    threading.Timer(0.05, planner.may_go_on.set).start()
    assert plans.of(PI) == (["pi"], "")
    assert planner.asked == [PI]


def test_a_plan_that_takes_long_is_not_made_at_once() -> None:
    """A fiftieth of the time is not over yet."""
    planner = Planner()
    PlansAhead(planner, expected_s=1e6).consider([PI])
    assert planner.asked == []


def test_a_fleet_without_a_plan_is_an_error_only_when_it_is_needed() -> None:
    plans = PlansAhead(Planner())
    plans.consider([frozenset()])
    with pytest.raises(WeftError, match="nobody is left"):
        plans.of(frozenset())
