"""A run of peers is resumed with the plan that made its networks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.plans.plan import Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.runtime.run.records.keeper import Keeper
from weft.runtime.run.records.plan_changes import CHANGES, PlanChange, PlanRecord
from weft.runtime.run.records.record import Folder
from weft.runtime.run.records.resumed_plan import with_plan_of
from weft.runtime.run.records.saves import RunFile

FLEET = Fleet((Device("a", data=True), Device("b")), (Link(("a", "b"), 10.0, 10.0),))


@dataclasses.dataclass(frozen=True)
class Question:
    """The part of what is asked for that a resumed plan depends on."""

    fleet: Fleet | None = FLEET
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    plan: Plan | None = None


def plan_of(batch: int) -> Plan:
    times = DeviceTimes((1.0,), (1.0,), (0.0,))
    profile = Profile("net", 4, (LayerCost("fc", 4, 4),), {"a": times, "b": times})
    return Plan(strategy="s", model="net", batch=batch, mode="train", source="a", fleet=FLEET,
                profile=profile, shards=(Shard("a", (0, 0)),))  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose last plan is for 8 samples, of a run that was started with `prefer=time`."""
    run = RunFile("net", "s", 5, 8, 0, options={"prefer": "time"})
    monkeypatch.setattr(Folder, "load", lambda self: SimpleNamespace(run=run))
    plan_of(8).save(tmp_path / "plan.json")
    return tmp_path


def test_the_first_plan_is_taken_and_not_made_again(folder: Path) -> None:
    asked: Any = Question(options={"prefer": "time"})
    assert with_plan_of(asked, folder).plan.batch == 8
    record = PlanRecord(plan_of(4), (PlanChange(3, plan_of(4), "b is lost"),))
    (folder / CHANGES).write_bytes(msgspec.json.encode(record))
    assert with_plan_of(asked, folder).plan.batch == 4  # the networks were cut by this one


def test_the_first_plan_is_in_the_folder_before_anybody_is_lost(folder: Path) -> None:
    """`plan.json` alone was there, without the peer that had just been left out: a run whose coordinator died
    then could not be resumed, because the folder held "other networks of peers"."""
    Keeper(Folder(folder), plan_of(4), 10, lambda step: 0.1).begin()
    plan_of(8).save(folder / "plan.json")  # another one runs now
    asked: Any = Question(options={"prefer": "time"})
    assert with_plan_of(asked, folder).plan.batch == 4


def test_other_options_and_other_devices_are_refused(folder: Path) -> None:
    other: Any = Question(options={"prefer": "accuracy"})
    with pytest.raises(InputError, match="--set prefer=time, not with --set prefer=accuracy"):
        with_plan_of(other, folder)
    fleet: Any = Question(options={"prefer": "time"}, fleet=Fleet((Device("a", data=True),)))
    with pytest.raises(InputError, match="one of a, b; the fleet has a"):
        with_plan_of(fleet, folder)
