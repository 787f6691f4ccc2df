"""The strategies by name, and the one function that asks for a plan.

    plan = make_plan("chain", task)
    get("edgemove").online              # its policy for live runs; None if it has none

A strategy comes from one of three places: the package `weft.strategies`, an entry point of an installed
package, or a file that the user names (`file.py:function`). Each is imported when it is needed.
"""

from __future__ import annotations

import difflib
import importlib
import time

import msgspec

from weft.errors import InputError
from weft.plans import options
from weft.plans.derive import check_profile
from weft.plans.plan import Plan
from weft.plans.plugins import from_file, load_plugins, named_before
from weft.plans.protocols import CLONE, GO_BACK, LEAVE_OUT, ONE_NETWORK, PEERS, Decide
from weft.plans.strategy import STRATEGIES, Strategy, resolve, strategy
from weft.plans.task import Task
from weft.user_files import file_and_name

__all__ = ["DEFAULT", "STRATEGIES", "Decide", "Strategy", "behind", "get", "make_plan", "names",
           "strategy"]  # fmt: skip

DEFAULT = "chain"  # used if the user names no strategy
AUTO = "auto"  # the best plan of all strategies; it is asked by this name, and is none of `names()`
CHOOSE = "weft.planning.advise:choose"


def load() -> None:
    """Imports the strategies that come with Weft, by name, because `plans` must not import them."""
    importlib.import_module("weft.strategies")


def names() -> tuple[str, ...]:
    """Every strategy of Weft and of installed packages."""
    load()
    load_plugins()
    return tuple(STRATEGIES)


def get(name: str) -> Strategy:
    """The strategy of that name, or of that `file.py:function`. Raises InputError if there is none."""
    load()
    if name == AUTO:
        return _auto()
    place = file_and_name(name)
    if place is not None:
        return from_file(*place)
    if name not in STRATEGIES:
        load_plugins()
    chosen = STRATEGIES.get(name) or named_before(name)
    if chosen is None:
        near = difflib.get_close_matches(name, STRATEGIES, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ";"
        raise InputError(
            f"unknown strategy {name!r}{hint} there are: {', '.join(STRATEGIES)}, "
            "or your own as file.py:function"
        )
    return chosen


def _auto() -> Strategy:
    """The record of the choice among all strategies. It has all of their options."""
    known = {key: text for record in STRATEGIES.values() for key, text in record.options.items()}
    return Strategy(
        AUTO, "the best plan of all strategies, or one place", resolve(CHOOSE), options=known
    )


def behind(plan: Plan) -> Strategy:
    """The strategy that made a plan. A plan file may come from a machine that has other strategies. Then the
    result is a record that describes the plan and cannot plan again."""
    try:
        return get(plan.strategy)
    except InputError as unknown:
        words = str(unknown)

    def decide(task: Task) -> Plan:
        raise InputError(words)

    return Strategy(
        plan.strategy,
        "known by its plan only",
        decide,
        (plan.mode,),
        replan=False,
        workload=PEERS if plan.peers else ONE_NETWORK,
        recovery=LEAVE_OUT if plan.peers else CLONE if plan.swarm else GO_BACK,
        exact=plan.peers is None and plan.swarm is None and plan.stale == 0,
    )


def make_plan(name: str, task: Task) -> Plan:
    """Asks the strategy for its plan and notes the time it took. A task that cannot be right is refused
    first."""
    chosen = get(name)
    _check(chosen, task)
    begin = time.perf_counter()
    plan = chosen.decide(task)
    if not isinstance(plan, Plan):
        raise InputError(
            f"strategy {chosen.name} gave a {type(plan).__name__}; it must return a weft.Plan"
        )
    if plan.owners != task.owners:
        raise InputError(
            f"strategy {chosen.name} gave a plan for the data of {', '.join(plan.sources)}; the data is "
            f"on {', '.join(task.sources)}: give the plan the task's owners"
        )
    seconds = time.perf_counter() - begin
    return msgspec.structs.replace(
        plan, strategy=chosen.name, planning_s=seconds, objective=task.objective
    )


def _check(chosen: Strategy, task: Task) -> None:
    if task.mode not in chosen.modes:
        raise InputError(
            f"strategy {chosen.name} is for {' and '.join(chosen.modes)}, not for {task.mode}"
        )
    for key, value in task.options.items():
        if key not in chosen.options:
            near = difflib.get_close_matches(key, chosen.options, n=1)
            hint = f" did you mean {near[0]}?" if near else ""
            raise InputError(
                f"--set {key}={value}: strategy {chosen.name} has no option {key!r};{hint} "
                f"it has: {', '.join(chosen.options)}"
            )
    for read in (options.route, options.codec, options.input_codec):
        read(task)  # also checked if the strategy does not use it
    if task.batch < 1:
        raise InputError(f"batch = {task.batch} is not allowed; it must be 1 or more")
    task.fleet.device(task.source)
    if task.owners and chosen.workload == PEERS:
        raise InputError(
            f"strategy {chosen.name}: every device opens its own samples of the data set, and the strategy "
            f"decides which; the fleet has data = true at {', '.join(task.sources)}: leave that out"
        )
    if task.owners and not chosen.several_sources:
        able = ", ".join(name for name, other in STRATEGIES.items() if other.several_sources)
        raise InputError(
            f"strategy {chosen.name} trains with the data of one device; the fleet has data on "
            f"{', '.join(task.sources)}: write data = true at one of them, or take one of {able}"
        )
    check_profile(task.profile, task.fleet)
