"""Who may change the plan of a run: asked before it, at every look, and when a device is lost.

    change = adviser.look(run, done)               # None: go on as it is
    change = adviser.lost(run, step, "edge1")      # a plan without it

An adviser opens nothing and stops nothing; the run carries its changes out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft.errors import LostDevice, WeftError
from weft.plans.plan import Plan

if TYPE_CHECKING:
    from weft.runtime.run.run import Run


@dataclass(frozen=True)
class Change:
    """Another plan for a run, and why."""

    plan: Plan
    why: str
    what: dict[str, Any] = field(default_factory=dict)  # for the run's events
    pause_s: float = 0.0  # training stops so long before: for a profile, layer by layer


class Adviser:
    """The plain one: it lets a run be. Others derive from it."""

    every = 0  # minibatches between two looks; 0: it does not look

    def first(self, plan: Plan) -> Plan:
        """The plan to prepare with, before anything is known of the fleet."""
        return plan

    def also(self, plan: Plan) -> tuple[str, ...]:
        """Devices beside the plan's that may get a part in it."""
        return ()

    def begin(self, run: Run, step: int) -> Change | None:
        """Before the first minibatch, when everybody is prepared."""
        return None

    def margin(self, run: Run) -> int:
        """How many minibatches before the end of a series it looks."""
        return 1

    def look(self, run: Run, done: int) -> Change | None:
        """`done` minibatches are done, and the series is about to end."""
        return None

    def blame(self, run: Run, fault: WeftError) -> str:
        """Which device is at fault; raises where the run cannot go on without it."""
        if isinstance(fault, LostDevice) and fault.device not in run.plan.sources:
            return fault.device
        raise fault  # the data is gone with it, or nobody can tell who it is

    def lost(self, run: Run, step: int, device: str) -> Change:
        """A plan for those who are left."""
        raise WeftError(f"{device} is gone, and nobody was asked to plan without it")

    def pause(self, run: Run, change: Change) -> None:
        """Before a change of plan is carried out."""

    def follow(self, run: Run) -> None:
        """Another plan runs from now on."""


class Nobody(Adviser):
    """A run without an adviser keeps its plan."""


def kind_of(before: Plan, after: Plan) -> str:
    """`worker_changed` where other devices compute than before, else `replanned`."""
    if {s.device for s in before.shards} != {s.device for s in after.shards}:
        return "worker_changed"
    return "replanned"
