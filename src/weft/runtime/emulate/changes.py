"""Turns a trace into the changes of one emulated device: its speed and its links at every moment.

changes = changes_of(trace, fleet, "edge1", source="phone", start=time.monotonic())
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from weft.fleet.fleet import Fleet
from weft.fleet.routes import direct_hops
from weft.fleet.trace import Trace
from weft.runtime.wire.links.changes import Changes, LinkState

T = TypeVar("T")


def changes_of(trace: Trace, fleet: Fleet, device: str, source: str, start: float) -> Changes:
    """The changes that a device must follow. `source` is the device whose links open and close."""
    pace: list[tuple[float, float]] = []
    links: dict[str, list[LinkState]] = {}
    for now in trace.times():
        pace.append((now, trace.slowdown(device, now)))
        for hop in direct_hops(trace.fleet(fleet, now)):
            if hop.source != device:
                continue
            # Wires between servers always stay. Only the source's radio links open and close.
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
    """The states without those that change nothing."""
    kept = states[:1]
    for state in states[1:]:
        if value(state) != value(kept[-1]):
            kept.append(state)
    return tuple(kept)
