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
from weft.planning.compare import Row, compare
from weft.planning.one_place import WORTH, best_place, one_places, place_of
from weft.plans import registry
from weft.plans.plan import Plan
from weft.plans.protocols import GO_BACK, ONE_NETWORK
from weft.plans.task import Task

LIMIT_S = 60.0  # for one strategy


class Best(Struct, frozen=True):
    """The advised plan. `against_one_machine`: how many times as fast as the best single machine."""

    strategy: str
    seconds: float
    against_one_machine: float | None  # None: no single machine has the memory
    why: str
    splits: bool  # whether several devices compute
    plan: Plan


def advise(rows: Sequence[Row], task: Task) -> Best | None:
    """The best exact plan of a comparison, or one place where splitting does not pay; None if none is."""
    alone = best_place(one_places(task), task.source)
    usable = [row for row in rows if row.plan is not None and row.exact and not row.peers]
    # Of equally fast plans the one with fewer devices.
    fastest = min(usable, key=lambda row: (row.cost, len(row.devices)), default=None)
    if alone is None and fastest is None:
        return None
    if alone is None:
        assert fastest is not None
        assert fastest.plan is not None
        why = f"no single machine has the memory for {task.profile.model}; {_on(fastest)} has"
        return Best(fastest.strategy, fastest.cost, None, why, True, fastest.plan)
    assert alone.predicted is not None
    one_s, place = alone.predicted.seconds, place_of(alone)
    if (
        fastest is not None
        and fastest.plan is not None
        and place_of(fastest.plan) is None
        and fastest.cost < one_s * (1 - WORTH)
    ):
        gain = one_s / fastest.cost
        why = f"{_on(fastest)} takes {_ms(fastest.cost)}, {place} alone {_ms(one_s)}: {gain:.2f} times as fast"
        return Best(
            fastest.strategy,
            fastest.cost,
            gain,
            why + _inexact(rows, fastest.cost),
            True,
            fastest.plan,
        )
    why = f"splitting does not pay: {place} alone takes {_ms(one_s)}"
    splits = [row for row in usable if row.plan is not None and place_of(row.plan) is None]
    if splits:
        next_best = min(splits, key=lambda row: row.cost)
        why += f", the best split ({_on(next_best)}) {_ms(next_best.cost)}"
    same = next((row for row in usable if row.plan and place_of(row.plan) == place), None)
    name = same.strategy if same is not None and same.cost <= one_s else alone.strategy
    plan = same.plan if same is not None and same.plan is not None and same.cost <= one_s else alone
    seconds = plan.predicted.seconds if plan.predicted else one_s
    return Best(name, seconds, one_s / seconds, why + _inexact(rows, seconds), False, plan)


def _on(row: Row) -> str:
    return f"{row.strategy} on {', '.join(row.devices)}"


def _inexact(rows: Sequence[Row], seconds: float) -> str:
    """A faster plan that computes something else is worth a word."""
    faster = [
        row for row in rows
        if row.seconds is not None and not row.exact and not row.peers and row.cost < seconds * (1 - WORTH)
    ]  # fmt: skip
    if not faster:
        return ""
    row = min(faster, key=lambda row: row.cost)
    return f". {row.strategy} would take {_ms(row.cost)}, but not compute the same: {row.differs}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


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
    options = {key: value for key, value in task.options.items() if key in known}
    asked = dataclasses.replace(task, options=options)
    best = advise(compare(asked, names, limit_s=LIMIT_S), asked)
    if best is None:
        raise WeftError(
            f"no strategy has a plan for {task.profile.model} on {', '.join(task.fleet.names)}; "
            "`weft compare` says why for each"
        )
    return best.plan.deciding(taken=best.strategy, why=best.why)
