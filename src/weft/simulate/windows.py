"""Stretches of time in which a device computes slower or a link carries nothing.

windows = Windows(slow={2: [(1.0, 3.0, 8.0)]}, cut={0: [(2.0, 2.5)]})
windows.compute_s(2, clock, seconds)         # what a computation takes that begins at `clock`
windows.left_s(0, start, seconds)            # when a message has left that begins to leave at `start`
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Windows:
    """By the number of a device or a channel in a compiled program. Windows of one kind do not overlap."""

    slow: dict[int, list[tuple[float, float, float]]] = field(default_factory=dict)
    cut: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def compute_s(self, device: int, clock: float, seconds: float) -> float:
        """How long a computation takes that begins at `clock` and takes `seconds` without any trouble."""
        now, work = clock, seconds
        for start, end, times in self.slow.get(device, ()):
            before = max(0.0, start - now)
            if work <= before or end <= now:
                continue
            work -= before
            now += before
            inside = min(work * times, end - now)
            work -= inside / times
            now += inside
        return now + work - clock

    def left_s(self, channel: int, start: float, seconds: float) -> float:
        """When a message has left. One that is under way when its link is cut goes on afterwards."""
        now, left = start, seconds
        for closed, opened in self.cut.get(channel, ()):
            if opened <= now or now + left <= closed:
                continue
            if opened == math.inf:
                return math.inf
            left -= max(0.0, closed - now)
            now = opened
        return now + left
