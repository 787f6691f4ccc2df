"""Comparing strategies: all of the mode, those of files too."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.planning.compare import compare
from weft.planning.task import make_task
from weft.plans import registry
from weft.plans.plan import Plan
from weft.plans.protocols import PEERS
from weft.plans.task import Task


def test_comparing_all_leaves_out_strategies_for_another_mode(task: Task) -> None:
    rows = compare(task)
    known = {name for name in registry.names() if "train" in registry.get(name).modes}
    assert {row.strategy for row in rows} == known


def test_an_option_that_no_compared_strategy_has_is_refused(task: Task, fleet: Fleet) -> None:
    other = make_task(task.profile, fleet, batch=16, options={"speed": 9})
    with pytest.raises(InputError, match="none of the compared strategies has an option 'speed'"):
        compare(other, ["all-edge"])


def test_rows_say_where_each_device_does_a_minibatch_of_its_own(task: Task) -> None:
    own = {name for name in registry.names() if registry.get(name).workload == PEERS}
    assert {row.strategy for row in compare(task) if row.peers} <= own


def test_a_strategy_of_a_file_is_compared_under_its_functions_name(
    task: Task, tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from weft.plans.registry import get\n"
        "def at_home(task):\n    return get('all-device').decide(task)\n"
        "def nowhere(task):\n    raise ValueError('no place')\n"
    )
    rows = compare(task, [f"{path}:at_home", "all-device", f"{path}:nowhere"])
    seconds = {row.strategy: row.seconds for row in rows}
    assert seconds["at_home"] == seconds["all-device"]
    assert rows[-1].strategy == "nowhere"
    assert "raised ValueError: no place" in (rows[-1].why_not or "")


def test_a_defect_of_one_strategy_is_a_row_and_not_the_end(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Task) -> Plan:
        raise ZeroDivisionError("division by zero")

    record = dataclasses.replace(registry.get("all-edge"), decide=broken)
    monkeypatch.setitem(registry.STRATEGIES, "all-edge", record)
    rows = {row.strategy: row for row in compare(task, ["all-edge", "all-device"])}
    assert rows["all-edge"].why_not == "internal error: ZeroDivisionError: division by zero"
    assert rows["all-device"].seconds is not None
