"""What a strategy, a workload, a recovery and a live policy must offer: types, no code.

    record = registry.get("chain")
    record.decide(task)                # Strategy: the plan
    record.online, record.recovery     # what else it can

A strategy names its workload and its recovery by a word. The run knows what stands behind each word; a
strategy of your own may write "package.module:attribute" instead, which is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Literal, Protocol

from weft.plans.online import Online, OnlineRequest
from weft.plans.plan import Plan
from weft.plans.task import Task

if TYPE_CHECKING:  # imports torch, which planning does without
    from torch import Tensor, nn

    from weft.graph.network import Graph

# What a run may be asked beside training or answering: the columns of `weft strategies --features`.
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
# What must be known or there before a strategy can decide.
# graph: the network itself, a profile is not enough.  tiers: devices of tier edge or cloud.
# links: a link between every two devices.  data: a data set that every device opens by name.
Need = Literal["graph", "tiers", "links", "data"]

ONE_NETWORK, PEERS = "one network", "peers"  # workloads
GO_BACK, CLONE, LEAVE_OUT = "go back", "clone", "leave out"  # recoveries

Decide = Callable[[Task], Plan]
MakeOnline = Callable[[OnlineRequest], Online]


class DeviceEvent(str, Enum):
    """What may happen to a device while it has a part in a run."""

    DEAD = "dead"  # its connection closed, or its process is gone
    SILENT = "silent"  # connected, but no heartbeat
    SLOW = "slow"  # heartbeats, but no progress
    CUT_OFF = "cut off"  # heard by the run, not by its neighbour
    BACK = "back"


class Strategy(Protocol):
    """What the rest of Weft may ask of a strategy; `registry.Strategy` is the record."""

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


class Workload(Protocol):
    """What is trained: one network, or one for every device."""

    def graph(self, device: str) -> Graph:
        """The network that a device has a part of."""
        ...

    def state(self, device: str) -> Mapping[str, Tensor]:
        """The weights that a device begins with."""
        ...

    def data(self, device: str) -> object:
        """Which samples a device feeds; None where it feeds none."""
        ...

    def result(self, states: Mapping[str, Mapping[str, Tensor]]) -> nn.Module:
        """The user's network, put together from what every device has at the end."""
        ...


class Recovery(Protocol):
    """What is done about a device that is lost."""

    def after(self, plan: Plan, lost: frozenset[str], event: DeviceEvent) -> Plan:
        """The plan to go on with, one version later; WeftError where nobody can go on."""
        ...

    def resume(self, plan: Plan) -> int:
        """The first minibatch that has to be done under that plan, perhaps again."""
        ...
