"""Values for the strategies' options. They are read from the registry's help texts if these list them.

    fitting(registry.get("chain"))            # "tiers": the kind of fleet it is made for
    choices("on | off: whether ...")          # ("on", "off")

An option without listed values and without a rule here is an error, so that no new option is forgotten.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from weft.fleet.fleet import Fleet
from weft.loom.networks import Net
from weft.plans.strategy import Strategy

OFTEN = 0.25  # how likely each option is set
# The kind of fleet, by an option that only strategies for such fleets have.
MARKS = {"slot_ms": "swarm", "topology": "peers", "shares": "cell", "overlap": "cell"}
# An option that only strategies with a long search have: they get small instances.
LONG_SEARCH = "codecs"
LISTED = re.compile(r"^([\w-]+(?: \| [\w-]+)+):")


def fitting(strategy: Strategy) -> str:
    """The kind of fleet that a strategy is made for, judged by its options."""
    for mark, kind in MARKS.items():
        if mark in strategy.options:
            return kind
    return "tiers"


def searches_long(strategy: Strategy) -> bool:
    """Whether a strategy needs small instances to stay quick."""
    return LONG_SEARCH in strategy.options


def choices(help_text: str) -> tuple[str, ...]:
    """The values that a help text lists, such as "min | store_and_forward: ..."."""
    found = LISTED.match(help_text)
    return tuple(found.group(1).split(" | ")) if found else ()


def draw_options(
    rng: random.Random, strategy: Strategy, net: Net, fleet: Fleet, batch: int
) -> dict[str, str]:
    """Some of the strategy's options, each with a value that it documents."""
    rules = {**RULES, **(PEER_RULES if fitting(strategy) == "peers" else {})}
    if fitting(strategy) == "cell":
        rules["devices"] = lambda rng, net, fleet, batch: str(rng.randint(1, len(fleet.names)))
    chosen = {}
    for key, text in strategy.options.items():
        if rng.random() >= OFTEN:
            continue
        listed = choices(text)
        if text.startswith("int8: always"):
            chosen[key] = "int8"
        elif key in rules:
            chosen[key] = rules[key](rng, net, fleet, batch)
        elif listed:
            chosen[key] = rng.choice(listed)
        else:
            raise LookupError(f"the loom has no values for option {key!r} of {strategy.name}")
    if strategy.modes != ("infer",) and "objective" in chosen and rng.random() < 0.8:
        del chosen["objective"]  # refused in training
    return chosen


def run_options(rng: random.Random, strategy: Strategy) -> dict[str, str]:
    """Options that keep a real run short."""
    short = {"pretrain": "1", "public": "20", "steps": "2", "rounds": "2", "slot_ms": "40"}
    keys = [key for key in short if key in strategy.options]
    if "slot_ms" in keys and rng.random() < 0.7:
        keys.remove("slot_ms")
    return {key: short[key] for key in keys}


Rule = Callable[[random.Random, Net, Fleet, int], str]


def _number(low: int, high: int) -> Rule:
    return lambda rng, net, fleet, batch: str(rng.randint(low, high))


def _names(rng: random.Random, net: Net, fleet: Fleet, batch: int) -> str:
    most = min(len(fleet.names), net.layers, 4)
    return ",".join(rng.sample(fleet.names, rng.randint(1, max(most, 1))))


def _links_by_number(rng: random.Random, net: Net, fleet: Fleet, batch: int) -> str:
    count = len(fleet.names)
    row = ",".join(f"{n}-{n + 1}" for n in range(count - 1))
    return rng.choice(("ring", "mesh", row or "ring"))


def _classes(rng: random.Random, net: Net, fleet: Fleet, batch: int) -> str:
    """Classes for each device: every class at least once, some twice."""
    count = rng.randint(1, len(fleet.names))
    sets: list[set[int]] = [set() for _ in range(count)]
    for label in range(net.classes):
        for holder in rng.sample(range(count), min(count, rng.randint(1, 2))):
            sets[holder].add(label)
    full = [held or {0} for held in sets]
    return "/".join(",".join(map(str, sorted(held))) for held in full)


# By key, for options whose help text lists no values.
RULES: dict[str, Rule] = {
    "micro_batches": lambda rng, net, fleet, batch: str(rng.randint(1, batch)),
    "in_flight": _number(1, 6),
    "ahead": _number(1, 3),
    "devices": _names,
    "seed": _number(1, 9),
    "polish": _number(1, 40),
    "probes": _number(1, 60),
    "packets": _number(1, 300),
    "copies": _number(1, 100),
    "drill": lambda rng, *_: rng.choice(("none", str(rng.randint(1, 60)))),
    "slot_ms": _number(1, 200),
    "every": _number(1, 30),
    "standby": lambda rng, net, fleet, batch: rng.choice(("auto", "none", *fleet.names)),
}
PEER_RULES: dict[str, Rule] = {
    "classes": _classes,
    "overlap": lambda rng, net, fleet, batch: str(rng.randint(1, max(net.classes // 2, 1))),
    "topology": _links_by_number,
    "last": _number(1, 3),
    "filters": _number(1, 100),
    "rounds": _number(1, 5),
    "steps": _number(1, 60),
    "tail": _number(1, 4),
    "pretrain": _number(1, 10),
    "public": _number(10, 100),
}
