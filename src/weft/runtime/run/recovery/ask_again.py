"""Ask again: a network that only answers loses no weights with a device, because all of them are here.

When a device is lost, the others stop and get a plan without it. Weights that a device does not hold come
from this machine. Requests without an answer are asked again, in their order; answers that have arrived
count. It does not matter which device is lost: the samples are here too, so another device can load them.
"""

from __future__ import annotations

import time

from weft.errors import LostDevice
from weft.runtime.run.recovery.protocol import Fault, Recovery
from weft.runtime.run.run import Run
from weft.runtime.run.serving.answering import Answering


class AskAgain(Recovery):
    """The recovery of a run that answers."""

    def recover(self, run: Run, fault: Fault, last: int) -> dict[str, int]:
        if not isinstance(fault, LostDevice) or not isinstance(run, Answering):
            raise fault
        begin = time.monotonic()
        device = fault.device
        run.absent.add(device)
        run.cancel(str(fault))
        step = run.first_unanswered(last)
        run.note(step, "device_lost", str(fault), device=device)
        for other in run.devices:  # whoever died together with it
            if other not in run.crew.present and other not in run.absent:
                run.absent.add(other)
                run.note(step, "device_lost", f"{other} is gone too", device=other)
        run.gather(without=frozenset(run.absent))
        change = run.adviser.lost(run, step, device)
        moved = run.hand_out(change.plan)
        run.forget_answers(step)
        run.outcome.done = dict.fromkeys(run.devices, step - 1)
        run.follow_plan(step)
        run.note(step, "recovered", change.why, **change.what, repeated=max(0, last - step),
                 moved_bytes=moved, seconds=round(time.monotonic() - begin, 3))  # fmt: skip
        return dict.fromkeys(run.working, step)
