"""Several strategies side by side: the predicted time of each strategy's plan, or the reason why it has none.

rows = compare(task, ["chain", "all-cloud"])     # best first
rows[0].seconds, rows[0].speedup
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from weft.errors import InputError, WeftError
from weft.planning.decide import decide
from weft.plans import registry
from weft.plans.plan import Mode, Plan
from weft.plans.task import Task


class Row(Struct, frozen=True):
    """One line of a comparison: the predicted time of a strategy's plan, or the reason why it has none."""

    strategy: str
    mode: Mode
    seconds: float | None = None  # per step, or until the answer
    speedup: float | None = None  # over the slowest possible row of the comparison
    devices: tuple[str, ...] = ()
    why_not: str | None = None
    peers: bool = False  # each device does a minibatch of its own in that time
    note: str = ""  # what else should be said of the plan

    @property
    def valid(self) -> bool:
        return self.why_not is None


def compare(task: Task, strategies: Iterable[str] | None = None) -> list[Row]:
    """Plans and prices several strategies (all for the mode): best first, impossible ones last.

    Speedups are over the slowest possible row. Every strategy gets those of the task's options that it has.
    An option that no strategy has raises InputError.
    """
    names = list(dict.fromkeys(registry.names() if strategies is None else strategies))
    chosen = [registry.get(name) for name in names]
    if strategies is None:
        chosen = [strategy for strategy in chosen if task.mode in strategy.modes]
    check_options(task, chosen)
    rows = [try_strategy(strategy, task) for strategy in chosen]
    slowest = max((row.seconds for row in rows if row.seconds is not None), default=0.0)
    return sorted((with_speedup(row, slowest) for row in rows), key=rank)


def check_options(task: Task, strategies: Sequence[registry.Strategy]) -> None:
    """Raises InputError for an option that none of the strategies has."""
    known = sorted({key for strategy in strategies for key in strategy.options})
    for key, value in task.options.items():
        if key not in known:
            raise InputError(
                f"--set {key}={value}: none of the compared strategies has an option {key!r}; "
                f"they have: {', '.join(known)}"
            )


def try_strategy(strategy: registry.Strategy, task: Task) -> Row:
    """A row without its speedup."""
    options = {key: value for key, value in task.options.items() if key in strategy.options}
    try:
        plan = decide(strategy.name, dataclasses.replace(task, options=options))
    except WeftError as error:
        return Row(strategy.name, task.mode, why_not=str(error))
    except Exception as error:  # one strategy's defect must not hide the others' plans
        why = f"internal error: {type(error).__name__}: {error}"
        return Row(strategy.name, task.mode, why_not=why)
    assert plan.predicted is not None
    return Row(
        strategy.name,
        task.mode,
        plan.predicted.seconds,
        devices=plan.devices,
        peers=plan.peers is not None,
        note=_alone(plan),
    )


def _alone(plan: Plan) -> str:
    """Said of a plan that could have cut layers into rows and units, and leaves all to one device."""
    workers = {turn.device for each in plan.rounds for turn in each.turns}
    if len(workers) != 1:
        return ""
    (only,) = workers
    return f"sharing layers does not pay here: {only} computes everything"


def with_speedup(row: Row, slowest: float) -> Row:
    """The row with its speed-up over the slowest row."""
    if row.seconds is None:
        return row
    speedup = slowest / row.seconds if row.seconds else 1.0
    return msgspec.structs.replace(row, speedup=speedup)


def rank(row: Row) -> float:
    """The key that puts the fastest row first and invalid rows last."""
    return math.inf if row.seconds is None else row.seconds
