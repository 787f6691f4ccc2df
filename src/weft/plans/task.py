"""A planner's input: a profile, a fleet, a batch size, and the user's options.

A strategy is a function in a file of `weft.strategies` or of the user

    @strategy("chain", "a layer pipeline over any number of devices")
    def chain(task: Task) -> Plan: ...

It opens no file or socket and reads no clock. To compare its candidates on physical links it calls
`task.price(plan)`, the simulator. The caller passes it in, so that `plans` need not import `simulate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weft.fleet.fleet import Fleet
from weft.fleet.owners import Owner
from weft.graph.network import Graph
from weft.plans.plan import Mode, Objective, Plan
from weft.plans.profile import Profile


@dataclass(frozen=True)
class Task:
    """All that a strategy may know when it decides."""

    profile: Profile
    fleet: Fleet
    batch: int
    mode: Mode
    source: str  # the device that holds the data (training) or asks (inference)
    # Seconds per step (training) or per answer (inference), or what else the objective counts.
    price: Callable[[Plan], float]
    options: Mapping[str, str] = field(default_factory=dict)  # from --set key=value
    graph: Graph | None = None  # absent when only a profile was given
    optimizer: str = "sgd"
    objective: Objective = "time"  # what `price` counts, if not seconds
    # Whether `price` is the simulator's. Then no price is below a bound of devices and links, and a planner
    # may leave out candidates by their bounds.
    simulated: bool = False
    owners: tuple[Owner, ...] = ()  # where several devices have data; `source` is the first of them

    @property
    def sources(self) -> tuple[str, ...]:
        """The devices with data."""
        return tuple(owner.device for owner in self.owners) or (self.source,)
