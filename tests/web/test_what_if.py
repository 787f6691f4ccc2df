"""What if the fleet were different: the plan's own strategy plans again, and both prices are told."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from weft.errors import InputError
from weft.plans.plan import Plan
from weft.web.planner import Planner, Question, answer
from weft.web.what_if import Change, changed_fleet, changed_profile, what_if


def test_nothing_changed_costs_what_the_plan_costs(plan: Plan) -> None:
    document = what_if(plan, Change(), "chain", {})
    assert plan.predicted is not None
    for key in ("before_s", "kept_s"):
        assert document[key] == pytest.approx(plan.predicted.seconds)
    assert document["plan"]["seconds"] == pytest.approx(plan.predicted.seconds)


def test_a_slower_fleet_costs_more_and_a_new_plan_no_more_than_the_old_one(plan: Plan) -> None:
    slower = what_if(plan, Change({"nuc-cloud": 0.05, "pi-nuc": 0.5}, {"nuc": 0.5}), "chain", {})
    assert slower["kept_s"] > slower["before_s"]
    assert slower["plan"]["seconds"] <= slower["kept_s"] * (1 + 1e-9)
    assert slower["predicted"]["bars"]


def test_a_device_that_is_gone_gets_no_part(plan: Plan) -> None:
    gone = next(name for name in plan.devices if name != "pi")
    document = what_if(plan, Change(gone=(gone,)), "chain", {})
    assert document["kept_s"] is None
    assert document["kept_why_not"] == f"it needs {gone}"
    assert gone not in document["plan"]["devices"]


def test_a_run_of_auto_is_planned_again_as_auto(plan: Plan) -> None:
    """Seen: `auto is not one of Weft's strategies`, for every run of the tutorial."""
    document = what_if(plan, Change({"pi-nuc": 0.01, "nuc-cloud": 0.01}), "auto", {})
    assert document["plan"]["devices"] == ["pi"]  # no link is worth its time any more
    assert document["plan"]["seconds"] < document["kept_s"]
    assert "a run's folder holds no network" in document["note"]


def test_factors_change_rates_speeds_and_profiles(plan: Plan) -> None:
    change = Change({"nuc-cloud": 0.5}, {"nuc": 2.0}, ("cloud",))
    fleet = changed_fleet(plan.fleet, Change({"nuc-cloud": 0.5}, {"nuc": 2.0}))
    assert (fleet.link[1].up_mbps, fleet.link[1].down_mbps) == (10.0, 5.0)
    assert fleet.device("nuc").gflops == 15.0
    assert changed_fleet(plan.fleet, change).names == ("pi", "nuc")
    profile = changed_profile(plan.profile, change)
    assert set(profile.devices) == {"pi", "nuc"}
    before = plan.profile.devices["nuc"].forward_s
    assert profile.devices["nuc"].forward_s == pytest.approx([t / 2 for t in before])


@pytest.mark.parametrize(
    ("change", "strategy", "says"),
    [
        (Change({"pi-moon": 2.0}), "chain", "no link or medium 'pi-moon'"),
        (Change(gone=("moon",)), "chain", "no device 'moon'"),
        (Change({"pi-nuc": 0.0}), "chain", "factor 0.0 of pi-nuc is not allowed"),
        (Change(speeds={"pi": float("nan")}), "chain", "factor nan"),
        (Change(gone=("pi",)), "chain", "pi has the data"),
        (Change(), "evil.py:plan", "code that a folder names is not run"),
        (Change(), "stitchnet", "plans with the network itself"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    plan: Plan, change: Change, strategy: str, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        what_if(plan, change, strategy, {})


def test_the_process_answers_with_a_document_or_a_reason(plan: Plan) -> None:
    asked = msgspec.json.encode(Question(plan, Change({"pi-nuc": 0.5}), "chain"))
    assert answer(asked)["kept_s"] > 0
    assert (
        "no device 'x'"
        in answer(msgspec.json.encode(Question(plan, Change(gone=("x",)), "chain")))["error"]
    )
    assert "error" in answer(b"rubbish")


def test_planning_that_takes_too_long_is_ended(plan: Plan) -> None:
    async def ask() -> tuple[dict[str, object], bool]:
        planner = Planner(limit_s=0.05, start_s=0.05)
        reply = await planner.ask(Question(plan, Change(), "chain"))
        return reply, planner._process is None

    reply, ended = asyncio.run(ask())
    assert reply == {"error": "planning took more than 0.05 s and was ended"}
    assert ended
