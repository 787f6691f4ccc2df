"""What a strategy, a workload, a recovery and a live policy must offer: types, no code.

    record = registry.get("chain")
    record.decide(task)                # Strategy: the plan
    record.online, record.recovery     # what else it can

A strategy names its workload and its recovery by a word. The run knows the class for each word. Your own
strategy may write "package.module:attribute" instead, which is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from weft.plans.online import Online, OnlineRequest
from weft.plans.plan import Plan
from weft.plans.task import Task

# Features of a run besides training or inference: the columns of `weft strategies --features`.
Feature = Literal[
    "adapt",
    "trace",
    "own loss",
    "own data",
    "save and resume",
    "plan file",
    "a device dies",
    "falls silent",
    "comes back",
]
# What a strategy needs before it can decide.
# graph: the network itself; a profile is not enough.  tiers: devices of tier edge or cloud.
# links: a link between every two devices.  data: a data set that every device opens by name.
Need = Literal["graph", "tiers", "links", "data"]

ONE_NETWORK, PEERS = "one network", "peers"  # workloads
GO_BACK, CLONE, LEAVE_OUT = "go back", "clone", "leave out"  # recoveries

Decide = Callable[[Task], Plan]
MakeOnline = Callable[[OnlineRequest], Online]


class Strategy(Protocol):
    """What the rest of Weft may ask of a strategy. `registry.Strategy` is the record."""

    @property
    def name(self) -> str: ...
    @property
    def decide(self) -> Decide: ...
    @property
    def replan(self) -> bool: ...
    @property
    def workload(self) -> str: ...
    @property
    def recovery(self) -> str: ...
