"""Several strategies side by side: the predicted time of each strategy's plan, or the reason why it has none.

rows = compare(task, ["chain", "all-cloud"])     # best first
rows[0].seconds, rows[0].speedup
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from weft.errors import InputError, WeftError
from weft.planning.decide import decide
from weft.planning.exactness import differs
from weft.planning.limit import TooLong, time_limit
from weft.planning.one_place import best_place, one_places, place_cost
from weft.plans import registry
from weft.plans.plan import Mode, Plan
from weft.plans.task import Task
from weft.simulate.objective import worth

# Options by which a strategy that codes messages on its own leaves that out, where the user does not say so.
EXACT = {"codecs": "none"}


class Row(Struct, frozen=True):
    """One line of a comparison: the predicted time of a strategy's plan, or the reason why it has none."""

    strategy: str
    mode: Mode
    seconds: float | None = None  # per step, or until the answer
    speedup: float | None = None  # over the best single machine; None where no single one is able
    devices: tuple[str, ...] = ()
    why_not: str | None = None
    peers: bool = False  # each device does a minibatch of its own in that time
    note: str = ""  # what else should be said of the plan
    differs: str = ""  # why it does not compute what one process computes
    worth: float | None = None  # joules, money or bytes, if something else than time counts
    plan: Plan | None = None
    setting: str = ""  # an option that this row has and the user did not give, such as codecs=none

    @property
    def label(self) -> str:
        """The strategy, and the option that makes it another one."""
        return f"{self.strategy} {self.setting}".rstrip()

    @property
    def valid(self) -> bool:
        return self.why_not is None

    @property
    def exact(self) -> bool:
        """Whether the plan computes what one process computes, up to rounding."""
        return not self.differs

    @property
    def cost(self) -> float:
        """What is compared, seconds or what else counts; infinite where there is no plan."""
        value = self.seconds if self.worth is None else self.worth
        return math.inf if value is None else value


def compare(
    task: Task,
    strategies: Iterable[str] | None = None,
    *,
    limit_s: float | None = None,
    on_begin: Callable[[str, int, int], None] = lambda name, done, count: None,
    on_error: Callable[[str, Exception], None] = lambda name, error: None,
) -> list[Row]:
    """Plans and prices several strategies (all for the mode): best first, impossible ones last.

    A strategy that codes messages on its own has a second row without that, so that the best plan that
    computes what one process computes is in the table. Speedups are over the best single machine. Every
    strategy gets those of the task's options that it has.
    An option that no strategy has raises InputError. A strategy that thinks longer than `limit_s` seconds is
    left out. `on_begin` gets its name, how many are done and how many there are; `on_error` gets defects.
    """
    names = list(dict.fromkeys(registry.names() if strategies is None else strategies))
    chosen = [registry.get(name) for name in names]
    if strategies is None:
        chosen = [strategy for strategy in chosen if task.mode in strategy.modes]
    check_options(task, chosen)
    rows = []
    for done, strategy in enumerate(chosen):
        on_begin(strategy.name, done, len(chosen))
        rows.append(try_strategy(strategy, task, limit_s, on_error))
        rows += exact_row(rows[-1], strategy, task, limit_s)
    alone = best_place(one_places(task), task.source)
    one = place_cost(alone) if alone is not None else None
    return sorted((with_speedup(row, one) for row in rows), key=lambda row: row.cost)


def exact_row(
    row: Row, strategy: registry.Strategy, task: Task, limit_s: float | None
) -> list[Row]:
    """The same strategy without the codecs that it may choose itself: if it then computes what one process
    does and the row does not, or if its search then finds a better plan."""
    own = {key: value for key, value in EXACT.items() if key in strategy.options}
    if not row.valid or not own or own.keys() & task.options.keys():
        return []
    options = {**task.options, **own}
    second = try_strategy(strategy, dataclasses.replace(task, options=options), limit_s)
    setting = " ".join(f"{key}={value}" for key, value in own.items())
    wanted = second.valid and second.exact and not (row.exact and row.cost <= second.cost)
    return [msgspec.structs.replace(second, setting=setting)] if wanted else []


def check_options(task: Task, strategies: Sequence[registry.Strategy]) -> None:
    """Raises InputError for an option that none of the strategies has."""
    known = sorted({key for strategy in strategies for key in strategy.options})
    for key, value in task.options.items():
        if key not in known:
            raise InputError(
                f"--set {key}={value}: none of the compared strategies has an option {key!r}; "
                f"they have: {', '.join(known)}"
            )


def try_strategy(
    strategy: registry.Strategy,
    task: Task,
    limit_s: float | None = None,
    on_error: Callable[[str, Exception], None] = lambda name, error: None,
) -> Row:
    """A row without its speedup."""
    options = {key: value for key, value in task.options.items() if key in strategy.options}
    try:
        with time_limit(limit_s):
            plan = decide(strategy.name, dataclasses.replace(task, options=options))
    except WeftError as error:
        return Row(strategy.name, task.mode, why_not=str(error))
    except TooLong as error:
        return Row(strategy.name, task.mode, why_not=f"{error}; --limit gives it more time")
    except Exception as error:  # one strategy's defect must not hide the others' plans
        on_error(strategy.name, error)
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
        differs=differs(plan, task.graph),
        plan=plan,
        worth=None if task.objective == "time" else worth(plan, plan.predicted, task.objective),
    )


def _alone(plan: Plan) -> str:
    """Said of a plan that could have cut layers into rows and units, and leaves all to one device."""
    workers = {turn.device for each in plan.rounds for turn in each.turns}
    if len(workers) != 1:
        return ""
    (only,) = workers
    return f"sharing layers does not pay here: {only} computes everything"


def with_speedup(row: Row, one: float | None) -> Row:
    """The row with what it gains over the best single machine, which takes `one`."""
    if row.seconds is None or one is None:
        return row
    return msgspec.structs.replace(row, speedup=one / row.cost if row.cost else 1.0)
