"""Makes a run ready although a device is lost before the first minibatch.

    make_ready(run, memory, step, planner, keeper)

Handing out weights takes minutes on a slow link. If a device is lost meanwhile, the others get a plan without
it, and all is handed out again: nothing has been computed yet. A device that never answered is refused
as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from weft.errors import LostDevice
from weft.runtime.run.advice import Change
from weft.runtime.run.migrate import next_version

if TYPE_CHECKING:
    from weft.runtime.run.records.keeper import Keeper
    from weft.runtime.run.run import Run
    from weft.runtime.run.survivors import Survivors

MOST_LOST = 5  # while a run is made ready


def make_ready(
    run: Run, memory: Mapping[str, Tensor], step: int, planner: Survivors, keeper: Keeper | None
) -> None:
    """`step` is the first minibatch; `keeper` records another plan. LostDevice where nobody can go on."""
    for _ in range(MOST_LOST):
        try:
            run.prepare(memory)
            return
        except LostDevice as fault:
            device = fault.device
            had_job = device in run.hired  # it was there when the jobs were handed out
            if not (run.recovery.goes_back and had_job) or device in run.plan.sources:
                raise
            run.absent.add(device)
            run.note(step, "device_lost", str(fault), device=device)
            if device in run.devices:
                change = planner.lost(run, step, device)
            else:
                change = Change(run.plan, f"{device} is gone; it had no part")
            run.adopt(next_version(run, change.plan))
            if keeper is not None:
                keeper.changed(step, run.plan, change.why)
            run.note(step, "recovered", change.why, **change.what, repeated=0)
    run.prepare(memory)
