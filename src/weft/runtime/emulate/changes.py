"""What a trace means for one emulated device: its speed and its links at every moment.

changes = changes_of(trace, fleet, "edge1", source="phone", start=time.monotonic())
changes.slowdown(time.monotonic())
clock = ChangingLink(changes.links["edge1>phone"], changes.start)
clock.book(now, size)            # when a message begins to leave, and when it has left
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from weft.fleet.fleet import Fleet
from weft.fleet.routes import direct_hops
from weft.fleet.trace import Trace

T = TypeVar("T")


class LinkState(Struct, frozen=True, array_like=True):
    """A channel from a time on. Rate 0: nothing crosses."""

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


def changes_of(trace: Trace, fleet: Fleet, device: str, source: str, start: float) -> Changes:
    """The changes that a device must follow. `source` is who reaches, or does not reach, the others."""
    pace: list[tuple[float, float]] = []
    links: dict[str, list[LinkState]] = {}
    for now in trace.times():
        pace.append((now, trace.slowdown(device, now)))
        for hop in direct_hops(trace.fleet(fleet, now)):
            if hop.source != device:
                continue
            # Between servers a wire stays; what comes and goes is the source's radio.
            away = [d for d in (hop.source, hop.dest) if d != source]
            open_ = source not in (hop.source, hop.dest) or trace.in_reach(away[0], now)
            rate = hop.bytes_per_s if open_ else 0.0
            links.setdefault(hop.channel, []).append(LinkState(now, rate, hop.latency_s))
    return Changes(
        start,
        _thin(pace, lambda p: p[1]),
        {c: _thin(s, lambda x: (x.bytes_per_s, x.latency_s)) for c, s in links.items()},
    )


def _thin(states: list[T], value: Callable[[T], object]) -> tuple[T, ...]:
    """Without those that change nothing."""
    kept = states[:1]
    for state in states[1:]:
        if value(state) != value(kept[-1]):
            kept.append(state)
    return tuple(kept)


def _place(times: list[float], now: float) -> int:
    return max(0, bisect.bisect_right(times, now) - 1)


class ChangingLink:
    """The clock of a channel whose rate changes: a message under way goes on at the new rate."""

    def __init__(self, states: tuple[LinkState, ...], start: float) -> None:
        self._times = [start + state.at_s for state in states]
        self._states = states
        self._free = 0.0

    def book(self, now: float, size: int) -> tuple[float, float]:
        """(begins to leave, has left); infinity where the channel never opens again."""
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
                return begin, math.inf  # and the channel stays free for whoever comes later
            left -= rate * (until - at)
            at, place = until, place + 1

    def latency(self, now: float) -> float:
        return self._states[_place(self._times, now)].latency_s
