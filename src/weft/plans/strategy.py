"""A strategy as a record: its function `decide`, and what else it can do.

    @strategy("mine", "the first half here, the rest there")
    def mine(task: Task) -> Plan: ...

The defaults are those of a strategy that splits one network and trains it as one process would. They make a
single function complete: it can be compared, priced, drawn, run, adapted and recovered.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.errors import InputError
from weft.plans.online import Online, OnlineRequest
from weft.plans.options import COMMON
from weft.plans.plan import Mode
from weft.plans.protocols import GO_BACK, ONE_NETWORK, Decide, Feature, MakeOnline, Need

Refusals = Mapping[Feature, str]
ANSWERS = "it answers and does not train"
# The refusals of a strategy that only infers.
ONLY_INFERS: Refusals = {
    "own loss": ANSWERS,
    "own data": ANSWERS,
    "save and resume": ANSWERS,
}


@dataclass(frozen=True)
class Strategy:
    """What a strategy decides, what it can, what it needs and what it refuses."""

    name: str
    summary: str
    decide: Decide
    modes: tuple[Mode, ...] = ("train", "infer")
    options: Mapping[str, str] = field(default_factory=lambda: dict(COMMON))  # keys of --set: help
    # Whether the strategy can plan again for a fleet that has changed. Set it to False if training cannot go
    # on under a new plan with the weights of the old one.
    replan: bool = True
    # Makes the policy that watches a live run: a function, or "package.module:attribute".
    online: MakeOnline | str | None = None
    workload: str = ONE_NETWORK  # or PEERS, or "package.module:attribute"
    recovery: str = GO_BACK  # or CLONE, LEAVE_OUT, or "package.module:attribute"
    needs: frozenset[Need] = frozenset()
    several_sources: bool = False  # whether it plans for several devices with data of their own
    exact: bool = True  # computes what plain training computes, codecs left out
    # What a run with this strategy cannot do, each with the reason that the user is told.
    refuses: Refusals = field(default_factory=dict)

    def make_online(self, request: OnlineRequest) -> Online:
        """The policy for a live run. Raises an error if the strategy has no `online`."""
        make = resolve(self.online) if isinstance(self.online, str) else self.online
        if make is None:
            raise InputError(f"strategy {self.name} has no policy that watches a live run")
        policy: Online = make(request)
        return policy


STRATEGIES: dict[str, Strategy] = {}


def strategy(
    name: str,
    summary: str,
    modes: tuple[Mode, ...] = ("train", "infer"),
    options: Mapping[str, str] | None = None,
    **abilities: Any,
) -> Callable[[Decide], Decide]:
    """Registers a function as the strategy `name`. `options` are its own keys for --set. `abilities` are
    further fields of `Strategy` that differ from their defaults."""

    def register(decide: Decide) -> Decide:
        if name in STRATEGIES:
            raise ValueError(f"two strategies are called {name!r}")
        STRATEGIES[name] = Strategy(
            name, summary, decide, modes, {**COMMON, **(options or {})}, **abilities
        )
        return decide

    return register


def registered(decide: Any) -> Strategy | None:
    """The strategy that a function was registered as."""
    return next((s for s in STRATEGIES.values() if s.decide is decide), None)


def resolve(where: str) -> Any:
    """The object that "package.module:attribute" names."""
    module, _, attribute = where.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{where!r} cannot be imported: {error}") from None
