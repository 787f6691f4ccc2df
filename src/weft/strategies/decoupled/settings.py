"""The options of the peers' strategies: what there is to set, read and checked in one place.

    settings = read_settings(task, plus=False)
    settings.steps, settings.tail

Each strategy checks all of them, also those that it does not use: a wrong value is a mistake everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from weft.codecs.registry import CodecName
from weft.plans import options
from weft.plans.peers import Deal, SharedBy
from weft.plans.task import Task

OPTIONS = {
    "classes": "sets by peer, such as 0,1,2/2,3,4 (devices in the fleet's order)",
    "overlap": "classes that a peer shares with either neighbour; it holds twice as many",
    "topology": "ring | mesh | links by number such as 0-1,1-2",
    "last": "convolutions that are decoupled, counted from the end",
    "filters": "percent of a layer's filters that a class keeps, or one for each layer: 10,19,19",
    "rounds": "exchanges",
    "steps": "minibatches of a peer in each round",
    "tail": "last rounds whose mean the network at the end is",
    "data": "replicate | split: whether owners of a class share its samples out",
    "shared": "ring | gossip | hub: how the shared layers are averaged",
    "pretrain": "minibatches, at the machine where you type, before the network is decoupled",
    "public": "samples, the first of the set, that everybody has: for them and for calibration",
}
FILTERS = 10  # percent of the filters that a class keeps, in the paper
# In decoupled+: percent in the first decoupled layer, and in later ones, which are cheap.
PLUS_FILTERS = (10, 19)
LAST = 3  # layers that are decoupled if the user sets no number
PLUS_TAIL = 4  # decoupled+ ends with the mean of so many last rounds


@dataclass(frozen=True)
class Settings:
    """What the user set, else the strategy's defaults. `classes`, `overlap` and `topology`: decide.py."""

    rounds: int
    steps: int
    tail: int
    pretrain: int
    public: int
    deal: Deal
    shared: SharedBy
    codec: CodecName


def read_settings(task: Task, *, plus: bool) -> Settings:
    """The settings of a task; InputError for a value that is not allowed."""
    shared = ("gossip",) if plus else ("ring", "gossip", "hub")
    return Settings(
        rounds=options.integer(task, "rounds", 8),
        steps=options.integer(task, "steps", 50),
        tail=options.integer(task, "tail", PLUS_TAIL if plus else 1),
        pretrain=options.integer(task, "pretrain", 100),
        public=options.integer(task, "public", 500),
        deal=cast(Deal, options.choice(task, "data", get_args(Deal), "replicate")),
        shared=cast(SharedBy, options.choice(task, "shared", shared, shared[0])),
        codec=_codec(task, plus),
    )


def _codec(task: Task, plus: bool) -> CodecName:
    """The user's codec; else 8 bits for decoupled+: only weights that a peer receives are rounded."""
    if "codec" in task.options:
        return options.codec(task)
    return "int8" if plus else "none"


def filter_percents(task: Task, most: int, *, plus: bool) -> list[int]:
    """Percent of the filters that a class keeps, for each of at most `most` decoupled layers."""
    last = options.integer(task, "last", max(1, min(LAST, most)), high=max(most, 1))
    first, later = PLUS_FILTERS if plus else (FILTERS, FILTERS)
    return options.integers(task, "filters", [first, *[later] * (last - 1)], high=100)


def check_filters(task: Task) -> None:
    """InputError for a wrong `last` or `filters` where nothing is decoupled and so neither is used."""
    count = task.options.get("filters", "").count(",") + 1
    last = options.integer(task, "last", count, high=max(count, len(task.profile.layers)))
    options.integers(task, "filters", [FILTERS] * last, high=100)
