"""The minibatches that a device has to do: a series that may grow while the device works.

    series = Series(lag=3)
    series.begin(0, 50)
    while (tick := series.tick()) is not None: ...     # 0 .. 52: the last three ticks run the pipeline empty
    series.extend(50, 100)                             # from another thread: then there is no end at 50

What a device does at a tick depends on the minibatches of the series. So a series whose pipeline has begun to
run empty is not extended: it ends, and the next minibatches are a new series. Other devices may have ended
their series at another minibatch.
"""

from __future__ import annotations

import threading


class Series:
    """A series of minibatches first..last-1, and the ticks it takes."""

    def __init__(self, lag: int) -> None:
        self.first = self.last = 0
        self.lag = lag
        self._tick = 0
        # `last`, or more if the series was extended after its pipeline began to run empty.
        self._until = 0
        self._over = True
        self._guard = threading.Lock()

    @property
    def begun(self) -> int:
        """The newest minibatch that has been begun; -1: none."""
        return min(self._tick, self.last) - 1

    def begin(self, first: int, last: int) -> None:
        with self._guard:
            self.first, self.last, self._until = first, last, last
            self._tick, self._over = first, False

    def tick(self) -> int | None:
        """The next tick; None when everything is done."""
        with self._guard:
            if self._tick == self.last:  # the pipeline would run empty now: has the series grown?
                self.last = self._until
            if self._tick >= self.last + self.lag:
                if self._until == self.last:
                    self._over = True
                    return None
                self.first = self._tick = self.last
                self.last = self._until
            self._tick += 1
            return self._tick - 1

    def extend(self, first: int, last: int) -> bool:
        """Extends the series to `last`. False if it has ended already or does not end at `first`."""
        with self._guard:
            if self._over or first != self._until or last < first:
                return False
            self._until = last
            return True
