"""Which strategies decide while they run, and how a live run asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.adapt.policy import Policy
from weft.adapt.steer import PolicySteering
from weft.errors import InputError
from weft.plan.plan import Plan

POLICIES: dict[str, Callable[..., Policy]] = {}


def has_policy(strategy: str) -> bool:
    return strategy in POLICIES


def policy_steering(
    strategy: str, plan: Plan, options: Mapping[str, object], every: int | None, seed: int
) -> PolicySteering:
    raise InputError(strategy)
