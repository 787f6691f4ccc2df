"""Plans for the fleet without a device, made before the device is lost.

    plans = PlansAhead(make)                        # make(present) plans for these devices
    plans.remember(frozenset({"pi", "nuc"}), plan)  # one that is known already
    plans.consider([frozenset({"pi"})])             # from time to time: makes one of these, if that is cheap
    plans.of(frozenset({"pi"}))                     # at once, where it is known

Planning is most of the recovery of a strategy that searches for long. A plan depends on who is there and on
nothing that changes in a run, so each is made once. Making plans ahead takes at most a fiftieth of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from weft.errors import WeftError
from weft.plans.plan import Plan

Present = frozenset[str]  # the devices that are there
Made = tuple[Plan, str]  # a plan, and a word on who made it
SHARE = 50  # planning ahead takes at most a fiftieth of the time
JOIN_S = 30.0
MOST = 64  # plans that are remembered


class PlansAhead:
    """The plans of one run by the devices that are there."""

    def __init__(self, make: Callable[[Present], Made], expected_s: float = 0.0) -> None:
        self._make = make
        self._plans: dict[Present, Made] = {}
        self._begun, self._spent = time.monotonic(), 0.0
        self._expected = expected_s  # CPU time of one plan
        self._thread: threading.Thread | None = None
        self._making: Present | None = None  # in the thread

    def remember(self, present: Present, made: Made) -> None:
        """A plan that was made elsewhere."""
        self._plans[present] = made
        while len(self._plans) > MOST:
            del self._plans[next(iter(self._plans))]

    def of(self, present: Present) -> Made:
        """The plan for these devices. WeftError where there is none."""
        if present == self._making and self._thread is not None:
            self._thread.join(timeout=JOIN_S)  # it has begun: a second start would take longer
        if present not in self._plans:
            self.remember(present, self._make(present))
        return self._plans[present]

    def consider(self, candidates: Iterable[Present]) -> None:
        """Makes the first of these plans that is not known, in a thread, if it takes little of the time."""
        if self._thread is not None and self._thread.is_alive():
            return
        missing = next((present for present in candidates if present not in self._plans), None)
        elapsed = time.monotonic() - self._begun
        if missing is None or SHARE * (self._spent + self._expected) > elapsed:
            return
        self._making = missing
        self._thread = threading.Thread(
            target=self._make_one, args=(missing,), name="planning", daemon=True
        )
        self._thread.start()

    def _make_one(self, present: Present) -> None:
        begin = time.thread_time()
        try:
            self.remember(present, self._make(present))
        except WeftError:
            pass  # whoever needs this plan gets the error then
        finally:
            self._expected = time.thread_time() - begin
            self._spent += self._expected
