"""A device is gone: the same change of plan as ever, with one holder less.

    stop = stop_at(run, gone="edge1", why="...")     # who is left has stopped; where each of them is
    move = migrate(run, plan_without_it, gone={"edge1"}, saved=saved)
    run.steps(stop.resume, ...)

A minibatch counts as done when every device that is left has made its update; what lies after the
slowest of them is done again. A device that was further makes that update twice: with a standby these
are at most the minibatches that were in flight.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from weft.errors import WeftError
from weft.program.instructions import Update
from weft.runtime.run.coordinator import Coordinator
from weft.runtime.wire import messages as msg

ANSWER_S = 6.0  # a device that is at work on one instruction finishes it first


@dataclass(frozen=True)
class Stop:
    """Where the survivors stand."""

    resume: int  # the first minibatch that has to be done (again)
    begun: int  # the first that nobody had begun

    @property
    def repeated(self) -> int:
        return max(0, self.begun - self.resume)


def stop_at(run: Coordinator, gone: str | None, why: str, first: int) -> Stop:
    """Stops everybody who is left; `first` is where the series began that was cut short."""
    run.cancel(why)
    resume, begun = [], [first]
    there = run.crew.present
    for device in run.working:
        if device == gone or device not in there:
            continue
        with contextlib.suppress(WeftError):  # it has gone too: the next try will find out
            (at,) = run.crew.ask(device, msg.Where(run.run), ANSWER_S)
            assert isinstance(at, msg.At)
            begun.append(at.begun + 1)
            if any(isinstance(i, Update) for i in run.program.code[device]):
                resume.append(at.step + 1)
    return Stop(max(first, min(resume, default=first)), max(begun))
