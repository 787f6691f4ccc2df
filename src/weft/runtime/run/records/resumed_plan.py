"""The plan with which a run of peers is resumed.

    asked = with_plan_of(asked, folder)      # before the workload is made

Each peer has a network of its own, cut out by the run's first plan. A strategy that is asked again may cut
other networks, because it plans with times that were measured anew. So the folder's first plan is taken.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from weft.errors import InputError
from weft.planning.decide import load_plan
from weft.plans.plan import Plan
from weft.runtime.run.records.plan_changes import CHANGES, PlanRecord
from weft.runtime.run.records.record import PLAN_FILE, Folder
from weft.runtime.run.workload.asked import Asked


def with_plan_of(asked: Asked, path: Path) -> Asked:
    """What was asked for, with the first plan of the run in a folder. InputError if that run had other
    options or devices."""
    run = Folder(path).load().run
    plan = _first_plan(path)
    options = {key: str(value) for key, value in asked.options.items()}
    if run.options != options:
        raise InputError(
            f"the run in {path} was started with {_words(run.options)}, not with {_words(options)}: "
            "resume it with the same options"
        )
    if asked.fleet is not None and asked.fleet.names != plan.fleet.names:
        raise InputError(
            f"the run in {path} is one of {', '.join(plan.fleet.names)}; the fleet has "
            f"{', '.join(asked.fleet.names)}: resume it with its own fleet"
        )
    return dataclasses.replace(asked, plan=plan, fleet=plan.fleet)


def _first_plan(path: Path) -> Plan:
    if (path / CHANGES).exists():
        return PlanRecord.load(path).first
    return load_plan(path / PLAN_FILE)


def _words(options: dict[str, str]) -> str:
    return " ".join(f"--set {key}={value}" for key, value in options.items()) or "no --set"
