"""Go back: the result is that of an undisturbed run.

Every device keeps copies of what it knows by minibatch number, and this machine keeps a whole one. When a
device is lost, the others stop and go back to the newest minibatch that all have reported. They get a plan
without the lost one, and repeat what lies between. Where a device stands by for the lost one and all have
made the same updates, nobody goes back: only what was in flight is repeated.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.errors import LostDevice
from weft.program import instructions as ins
from weft.runtime.run.migrate import ANSWER_S, Move, NobodyHolds, go_back, migrate
from weft.runtime.run.recovery.protocol import Fault, Recovery

if TYPE_CHECKING:
    from weft.runtime.run.advice import Change
    from weft.runtime.run.run import Run


@dataclass(frozen=True)
class Standstill:
    """Where the survivors stand."""

    resume: int  # the first minibatch that not all of them have done
    begun: int  # the first that nobody had begun
    together: (
        bool  # all have made the updates of the same minibatches, and none is in the middle of one
    )


class GoBack(Recovery):
    """Survivors go back to the newest whole copy, or to a standby's weights, and repeat from there."""

    recovers = goes_back = True

    def recover(self, run: Run, fault: Fault, last: int) -> dict[str, int]:
        begin = time.monotonic()
        device = run.adviser.blame(run, fault)
        dead = isinstance(fault, LostDevice)
        if dead:
            run.absent.add(device)
        still = stop_all(run, device, str(fault), run.copies.newest.step)
        run.note(still.resume, "device_lost", str(fault), device=device)
        gone = {device} if dead else set()
        self._note_others(run, still.resume)
        # A device that was lost and is there again has forgotten all.
        gone |= run.absent & set(run.devices)
        run.gather(without=frozenset(gone))
        change = run.adviser.lost(run, still.resume, device)
        run.adviser.pause(run, change)
        move = self._move(run, change, gone, still)
        step = still.resume if move.back_to is None else move.back_to
        run.outcome.repeat_from(step)
        run.outcome.done = dict.fromkeys(run.devices, step - 1)
        run.follow_plan(step)
        run.note(step, "recovered", change.why, **change.what, moved_bytes=move.bytes,
                 repeated=max(0, still.begun - step), seconds=round(time.monotonic() - begin, 3))  # fmt: skip
        return dict.fromkeys(run.working, step)

    def _note_others(self, run: Run, step: int) -> None:
        """Devices that were lost together with the first one. They are taken back when they return."""
        also = {d for d in run.devices if d not in run.crew.present} - run.absent
        for device in sorted(also & set(run.plan.sources)):
            raise LostDevice(device, f"{device} is gone, and the data with it")
        for device in sorted(also):
            run.absent.add(device)
            run.note(step, "device_lost", f"{device} is gone too", device=device)

    def _move(self, run: Run, change: Change, gone: set[str], still: Standstill) -> Move:
        held_elsewhere = run.plan.standby or not gone  # nothing is lost with the device
        stashed = any(ins.stashed(run.program.code.get(device, ())) for device in gone)
        if run.is_ready and held_elsewhere and still.together and not stashed:
            try:
                return migrate(run, change.plan, gone=gone)
            except NobodyHolds:
                pass
        # If another device is lost meanwhile, nobody shall believe that all are where they were before.
        run.outcome.done = dict.fromkeys(run.devices, run.copies.newest.step - 1)
        return go_back(run, change.plan, run.copies.newest, gone)


def stop_all(run: Run, gone: str, why: str, first: int) -> Standstill:
    """Stops everybody who is left; `first` is where all of them have been for certain."""
    run.cancel(why)
    there = [d for d in run.working if d != gone and d in run.crew.present]
    places = run.where(there, ANSWER_S)
    begun = [first, *(at.begun + 1 for at in places.values())]
    # A device that has just got a plan has done nothing under it: what it has done before counts.
    done = {
        device: max(at.step, run.outcome.done.get(device, -1))
        for device, at in places.items()
        if any(isinstance(i, ins.Update) for i in run.program.code[device])
    }
    together = (
        places.keys() == set(there)  # where a device stands that does not answer is not known
        and len(set(done.values())) == 1
        and all(places[device].updated <= step for device, step in done.items())
    )
    return Standstill(max(first, min(done.values(), default=first - 1) + 1), max(begun), together)
