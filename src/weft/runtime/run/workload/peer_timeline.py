"""When the peers' minibatches were done: of all together where they wait for each other, else of each.

assembled(spans, plan.peers).step_s
round_seconds(timeline, "p1", every=20)      # one peer's own rounds
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable

import msgspec

from weft.plans.peers import Peers
from weft.program.timeline import Span, Timeline


def device_ends(spans: Iterable[Span], device: str) -> list[float]:
    """When a device was done with each of its minibatches."""
    ends: dict[int, float] = {}
    for span in spans:
        if span.where == device and span.what != "transfer":
            ends[span.step] = max(ends.get(span.step, 0.0), span.end)
    return [ends[step] for step in sorted(ends)]


def round_seconds(timeline: Timeline, device: str, every: int) -> float:
    """The median time between one end of a round and the next, at one device."""
    ends = device_ends(timeline.spans, device)[every - 1 :: every]
    return statistics.median(b - a for a, b in itertools.pairwise(ends))


def assembled(found: list[Span], peers: Peers) -> Timeline:
    """A timeline from 0 on. Where nobody waits, it ends its minibatches when the median peer does."""
    begin = min((s.start for s in found), default=0.0)
    spans = tuple(
        msgspec.structs.replace(s, start=s.start - begin, end=s.end - begin)
        for s in sorted(found, key=lambda s: s.start)
    )
    each = [device_ends(spans, device) for device in peers.devices]
    beat = max(2, peers.every)
    if peers.late == "newest":
        # as many minibatches as half of the peers have done, at the median one's pace
        by_pace = sorted(
            (e for e in each if len(e) > 1), key=lambda e: (e[-1] - e[0]) / (len(e) - 1)
        )
        ends = by_pace[(len(by_pace) - 1) // 2] if by_pace else []
        return Timeline(spans, tuple(ends), "measured", beat)
    last: dict[int, float] = {}
    for span in spans:
        if span.what != "transfer":
            last[span.step] = max(last.get(span.step, 0.0), span.end)
    return Timeline(spans, tuple(last[s] for s in sorted(last)), "measured", beat)
