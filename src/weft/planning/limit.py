"""A limit on the time that a strategy may think.

    with time_limit(60.0):
        plan = decide("chain", task)           # TooLong after a minute of computing

CPU time counts, so that the result does not depend on what else the machine does. The limit interrupts the
main thread. Elsewhere, and on systems without such a timer, there is none.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

AGAIN_S = 1.0  # a planner that goes on after the interruption is interrupted again


class TooLong(BaseException):
    """The time is over. No planner and no wrapper of a user's file catches it: it is no Exception."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raises TooLong in the block if it takes longer."""
    able = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if seconds is None or not able:
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"it needs more than {seconds:g} s of computing to plan")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
