"""A timeline: what happened when, on which device or channel. The simulator and the runtime both produce
one."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.showing import Shown


class Span(Struct, frozen=True, array_like=True):
    """What one device or channel did between two times."""

    where: str  # a device's or a channel's name
    # load, forward, loss, backward, update, emit, wait, message (the runtime's own time); "transfer" on a
    # channel
    what: str
    start: float  # seconds since the run began
    end: float
    step: int  # minibatch
    micro: int = 0
    label: str = ""  # layers "0-3" or the tensor's name
    bytes: int = 0


class Timeline(Struct, Shown, frozen=True):
    """All spans of a run or of a simulation, and when each minibatch was done."""

    spans: tuple[Span, ...]
    step_ends: tuple[float, ...]  # when each minibatch was done on every device
    source: str = "simulated"  # or "measured"
    beat: int = 2  # minibatches after which the pattern of their ends repeats

    @property
    def makespan(self) -> float:
        return max((s.end for s in self.spans), default=0.0)

    @property
    def step_s(self) -> float:
        """Seconds from one minibatch to the next in the steady state: the median of the later half.

        This is half of the time between every second end, because long and short gaps may alternate and their
        median would be one of the two. With k minibatches in flight it is a k-th of the time between every
        k-th end.
        """
        ends = sorted(self.step_ends)
        if len(ends) < 3:
            return ends[-1] - ends[0] if len(ends) == 2 else sum(ends)
        beat = min(self.beat, len(ends) - 1)
        gaps = [(b - a) / beat for a, b in zip(ends, ends[beat:], strict=False)]
        return statistics.median(gaps[len(gaps) // 2 :] if len(gaps) > 3 else gaps)

    def busy(self, where: str) -> float:
        return sum(s.end - s.start for s in self.spans if s.where == where and s.what != "wait")

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))

    @staticmethod
    def load(path: Path) -> Timeline:
        return msgspec.json.decode(path.read_bytes(), type=Timeline)
