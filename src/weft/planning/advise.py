"""The advice that people want: which plan to take, and what it gains over the best single machine.

    best = advise(compare(task), task)
    best.strategy, best.against_one_machine, best.why

    decide("auto", task)       # the plan that the advice names; `choose` is behind it

A split must gain more than a little, because a prediction is not exact. Only plans that compute what one
process computes are advised; a faster one that does not is named in words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from msgspec import Struct

from weft.errors import WeftError
from weft.planning.compare import EXACT, Row, compare
from weft.planning.exactness import differs
from weft.planning.one_place import WORTH, best_place, one_places, place_cost, place_of
from weft.plans import registry
from weft.plans.plan import Objective, Plan
from weft.plans.protocols import GO_BACK, ONE_NETWORK
from weft.plans.task import Task

LIMIT_S = 60.0  # for one strategy


class Best(Struct, frozen=True):
    """The advised plan. `against_one_machine`: how many times as good as the best single machine."""

    strategy: str
    seconds: float
    against_one_machine: float | None  # None: no single machine has the memory
    why: str
    splits: bool  # whether several devices compute
    plan: Plan


def advise(rows: Sequence[Row], task: Task) -> Best | None:
    """The best exact plan of a comparison, or one place where splitting does not pay; None if none is."""
    usable = [row for row in rows if row.plan is not None and row.exact and not row.peers]
    alone = _one_place(usable, task)
    splits = [row for row in usable if row.plan is not None and place_of(row.plan) is None]
    # Of equally fast plans the one with fewer devices.
    split = min(splits, key=lambda row: (row.cost, len(row.devices)), default=None)
    if alone is None:
        return None if split is None else _split(split, None, rows, task)
    if split is not None and split.cost < alone.cost * (1 - WORTH):
        return _split(split, alone, rows, task)
    assert alone.plan is not None
    why = f"splitting does not pay: {place_of(alone.plan)} alone takes {amount(alone.cost, task.objective)}"
    if split is not None:
        why += f", the best split ({_on(split)}) {amount(split.cost, task.objective)}"
    why += _inexact(rows, alone.cost, task)
    return Best(alone.strategy, alone.seconds or 0.0, 1.0, why, False, alone.plan)


def why_none(rows: Sequence[Row], task: Task) -> str:
    """Why there is no advice: what the plans that there are would change in the result of training."""
    names = ", ".join(task.fleet.names)
    planned = [row for row in rows if row.plan is not None]
    if not planned:
        return f"no strategy has a plan for {task.profile.model} on {names}"
    row = min(planned, key=lambda row: (row.peers, row.cost))
    text = f"no plan for {task.profile.model} on {names} computes what one process computes"
    text += f". {row.label} takes {amount(row.cost, task.objective)}, but differs: {row.differs}"
    return f"{text}. If that is fine for you, name it: --strategy {row.strategy}"


def _one_place(usable: Sequence[Row], task: Task) -> Row | None:
    """The best single machine: of the compared plans, and of all devices that can hold the network."""
    plans = [row.plan for row in usable if row.plan is not None and place_of(row.plan) is not None]
    plans += [plan for plan in one_places(task) if not differs(plan, task.graph)]
    best = best_place(plans, task.source)
    if best is None or best.predicted is None:
        return None
    value = None if task.objective == "time" else place_cost(best)
    return Row(
        best.strategy,
        task.mode,
        best.predicted.seconds,
        plan=best,
        devices=best.devices,
        worth=value,
    )


def _split(split: Row, alone: Row | None, rows: Sequence[Row], task: Task) -> Best:
    assert split.plan is not None
    if alone is None or alone.plan is None:
        why = f"no single machine can do {task.profile.model} by itself; {_on(split)} can"
        return Best(split.strategy, split.seconds or 0.0, None, why, True, split.plan)
    gain = alone.cost / split.cost
    with_all, by_one = (amount(row.cost, task.objective) for row in (split, alone))
    better = "as fast" if task.objective == "time" else "less"
    why = f"{_on(split)} takes {with_all}, {place_of(alone.plan)} alone {by_one}: {gain:.2f} times {better}"
    why += _inexact(rows, split.cost, task)
    return Best(split.strategy, split.seconds or 0.0, gain, why, True, split.plan)


def _on(row: Row) -> str:
    return f"{row.label} on {', '.join(row.devices)}"


def _inexact(rows: Sequence[Row], least: float, task: Task) -> str:
    """A better plan that computes something else is worth a word."""
    faster = [
        row for row in rows
        if row.seconds is not None and not row.exact and not row.peers and row.cost < least * (1 - WORTH)
    ]  # fmt: skip
    if not faster:
        return ""
    row = min(faster, key=lambda row: row.cost)
    cost = amount(row.cost, task.objective)
    return f". {row.strategy} would take {cost}, but not compute the same: {row.differs}"


def amount(value: float, objective: Objective) -> str:
    """What a plan costs, in the unit of its objective."""
    if objective == "energy":
        return f"{value:.3g} J"
    if objective == "money":
        return f"{value:.3g} of money"
    if objective == "memory":
        return f"{value / 1e6:.3g} MB on its fullest device"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def candidates(task: Task) -> list[str]:
    """The strategies that `auto` asks: they compute what one process computes, and decide before a run."""
    names = []
    for name in registry.names():
        record = registry.get(name)
        trains = record.workload == ONE_NETWORK and record.recovery == GO_BACK
        if task.mode in record.modes and record.exact and trains and record.online is None:
            names.append(name)
    return names


def choose(task: Task) -> Plan:
    """The plan of the best strategy: what `--strategy auto` runs."""
    names = candidates(task)
    known = {key for name in names for key in registry.get(name).options}
    options = {key: value for key, value in {**EXACT, **task.options}.items() if key in known}
    asked = dataclasses.replace(task, options=options)
    rows = compare(asked, names, limit_s=LIMIT_S)
    best = advise(rows, asked)
    if best is None:
        raise WeftError(f"{why_none(rows, asked)}; `weft compare` says why for each")
    return best.plan.deciding(taken=best.strategy, why=best.why)
