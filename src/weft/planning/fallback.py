"""A plan for those who are left, also where the strategy itself has none for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import msgspec

from weft.errors import WeftError
from weft.planning.decide import decide
from weft.plans import registry
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.plans.task import Task


def plan_that_fits(strategy: str, task: Task, check: Callable[[Plan], None]) -> tuple[Plan, str]:
    """The strategy's plan; else one of a strategy that can plan for this fleet, and a word on why.

    `check` raises a WeftError where the run's loss forbids a plan that cuts minibatches.
    """
    # The user's options may name a device that is gone. A plan of whole minibatches trains what any other
    # plan trains.
    whole = {"micro_batches": "1"}
    tries: list[tuple[str, Mapping[str, str]]] = [
        (strategy, task.options), (strategy, {}), (registry.DEFAULT, whole),
        (registry.DEFAULT, {**whole, "devices": task.source}),
    ]  # fmt: skip
    reasons = []
    for name, options in tries:
        try:
            plan = decide(name, dataclasses.replace(task, options=options))
            check(plan)
        except WeftError as error:
            reasons.append(f"{name}: {error}")
            continue
        return plan, "" if name == strategy else f"; {strategy} cannot plan without it, {name} can"
    raise WeftError(f"no plan for {', '.join(sorted(task.fleet.names))}: {'; '.join(reasons)}")


def within(profile: Profile, present: frozenset[str]) -> Profile:
    """The profile of those who are there."""
    devices = {name: times for name, times in profile.devices.items() if name in present}
    return msgspec.structs.replace(profile, devices=devices)
