"""The strategies by name, and the one way to ask for a plan.

    plan = make_plan("chain", task)

A strategy file registers its functions with `@strategy`; the package `weft.strategies` imports the files,
and is itself imported when the first strategy is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from weft.errors import InputError
from weft.plans.derive import check_profile
from weft.plans.options import COMMON
from weft.plans.plan import Mode, Plan
from weft.plans.task import Task

Decide = Callable[[Task], Plan]


@dataclass(frozen=True)
class Strategy:
    name: str
    summary: str
    modes: tuple[Mode, ...]
    options: Mapping[str, str]  # every key that --set may give it, with one line of help
    decide: Decide


STRATEGIES: dict[str, Strategy] = {}


def strategy(
    name: str,
    summary: str,
    modes: tuple[Mode, ...] = ("train", "infer"),
    options: Mapping[str, str] | None = None,
) -> Callable[[Decide], Decide]:
    """Register a function as the strategy `name`. `options` are its own keys for --set."""

    def register(decide: Decide) -> Decide:
        if name in STRATEGIES:
            raise ValueError(f"two strategies are called {name!r}")
        STRATEGIES[name] = Strategy(name, summary, modes, {**COMMON, **(options or {})}, decide)
        return decide

    return register


def load() -> None:
    """Import the strategies that come with Weft, by name: `plans` knows none of them."""
    importlib.import_module("weft.strategies")


def names() -> tuple[str, ...]:
    load()
    return tuple(STRATEGIES)


def get(name: str) -> Strategy:
    load()
    found = STRATEGIES.get(name)
    if found is None:
        near = difflib.get_close_matches(name, STRATEGIES, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"unknown strategy {name!r}{hint}; there are: {', '.join(STRATEGIES)}")
    return found


def make_plan(name: str, task: Task) -> Plan:
    """The strategy's plan and the time it took; a task that cannot be right is refused first."""
    chosen = get(name)
    _check(chosen, task)
    begin = time.perf_counter()
    plan = chosen.decide(task)
    return msgspec.structs.replace(plan, planning_s=time.perf_counter() - begin)


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
    if task.batch < 1:
        raise InputError(f"batch = {task.batch} is not allowed; it must be 1 or more")
    task.fleet.device(task.source)
    check_profile(task.profile, task.fleet)
