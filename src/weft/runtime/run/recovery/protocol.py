"""The protocol of recoveries, and a base that does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import LostDevice
from weft.plans.plan import Plan
from weft.runtime.run.outcome import Stalled

if TYPE_CHECKING:
    from weft.runtime.run.run import Run

Fault = LostDevice | Stalled


class Returned(LostDevice):
    """A device that was lost is there again, and ready: the others are put together anew with it."""


class Recovery:
    """What a run does about a lost device."""

    recovers = False  # whether a run goes on without a lost device
    goes_back = False  # whether devices' copies are put together, to go back to

    def waits(self, plan: Plan) -> bool:
        """Whether a silent device holds up the others, and so counts as lost."""
        return True

    def recover(self, run: Run, fault: Fault, last: int) -> dict[str, int]:
        """Makes the run ready to go on; returns the next minibatch of each device that works.

        Raises the fault where there is no way on. LostDevice for another device: that one went meanwhile.
        """
        raise fault

    def took(self, run: Run, step: int, why: str) -> None:
        """The others have a plan without the lost device: who watches the run hears of it."""
        run.on_plan(step, run.plan, why)
        run.adviser.follow(run)

    def hear(self, run: Run, event: object, waiting: set[str]) -> None:
        """Every report, before the run takes it."""

    def look_around(self, run: Run) -> None:
        """Several times a second, while the run listens. May raise a Fault."""
