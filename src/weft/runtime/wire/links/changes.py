"""How one emulated device's speed and links change, and the clock of a channel whose rate changes.

changes.slowdown(time.monotonic())
clock = ChangingLink(changes.links["edge1>phone"], changes.start)
clock.book(now, size)            # when a message begins to leave, and when it has left
"""

from __future__ import annotations

import bisect
import math

from msgspec import Struct


class LinkState(Struct, frozen=True, array_like=True):
    """A channel's rate and latency from a time on. Rate 0: the channel is closed."""

    at_s: float
    bytes_per_s: float
    latency_s: float


class Changes(Struct, frozen=True):
    """One device's part of a trace. Times are seconds after `start` of the machine's clock."""

    start: float
    pace: tuple[tuple[float, float], ...]  # (from when, slowdown)
    links: dict[str, tuple[LinkState, ...]]  # by channel

    def slowdown(self, now: float) -> float:
        return self.pace[_place([at for at, _ in self.pace], now - self.start)][1]


def _place(times: list[float], now: float) -> int:
    return max(0, bisect.bisect_right(times, now) - 1)


class ChangingLink:
    """The clock of a channel whose rate changes. The rest of a message under way is sent at the new rate."""

    def __init__(self, states: tuple[LinkState, ...], start: float) -> None:
        self._times = [start + state.at_s for state in states]
        self._states = states
        self._free = 0.0

    def book(self, now: float, size: int) -> tuple[float, float]:
        """(when a message begins to leave, when it has left); infinity if the channel never opens again."""
        begin = at = max(now, self._free)
        left = float(size)
        place = _place(self._times, at)
        while True:
            rate = self._states[place].bytes_per_s
            until = self._times[place + 1] if place + 1 < len(self._times) else math.inf
            if rate and at + left / rate <= until:
                self._free = at + left / rate
                return begin, self._free
            if until == math.inf:
                return begin, math.inf  # the channel stays free for later messages
            left -= rate * (until - at)
            at, place = until, place + 1

    def latency(self, now: float) -> float:
        return self._states[_place(self._times, now)].latency_s
