"""What the process that emulates a fleet does to its nodes while they run: links are cut, devices get slower.

    write_trouble(scratch, Trouble(cuts=((("pi", "nuc"), until),), slow={"cloud": 8.0}))
    troubles = Troubles(scratch, "pi")          # in the node
    troubles.cut_until("nuc"), troubles.slowdown

It is a file in the folder that the emulated nodes share. A node that uses a link or computes looks at the
file's time, at most every 5 ms, and reads it again when it has changed. A real node has no such folder, and
nothing of this can happen.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from msgspec import Struct

FILE = "trouble.json"
LOOK_S = 0.005  # between two looks: a system call for every message would be too much


class Trouble(Struct, frozen=True):
    """What is wrong at this moment. `until` is on the machine's monotonic clock."""

    cuts: tuple[tuple[str, str, float], ...] = ()  # (one end, the other end, until)
    slow: dict[str, float] = {}  # device: how many times slower it computes


def write_trouble(scratch: Path, trouble: Trouble) -> None:
    """All nodes of the fleet see it within some milliseconds."""
    beside = scratch / f".{FILE}"
    beside.write_bytes(msgspec.json.encode(trouble))
    os.replace(beside, scratch / FILE)


class Troubles:
    """A node's view of the file."""

    def __init__(self, scratch: Path | None, device: str) -> None:
        self._path = None if scratch is None else scratch / FILE
        self._device = device
        self._stamp: tuple[int, int] | None = None
        self._trouble = Trouble()
        self._next = 0.0  # when to look again

    def cut_until(self, neighbour: str) -> float:
        """When the link to a neighbour works again; 0 where it is not cut."""
        ends = {self._device, neighbour}
        return max((u for a, b, u in self._now().cuts if {a, b} == ends), default=0.0)

    @property
    def slowdown(self) -> float:
        """How many times slower this device computes."""
        return self._now().slow.get(self._device, 1.0)

    def _now(self) -> Trouble:
        if self._path is None or time.monotonic() < self._next:
            return self._trouble
        self._next = time.monotonic() + LOOK_S
        try:
            status = os.stat(self._path)
            stamp = status.st_mtime_ns, status.st_ino
            if stamp != self._stamp:
                self._trouble = msgspec.json.decode(self._path.read_bytes(), type=Trouble)
                self._stamp = stamp
        except (OSError, msgspec.MsgspecError):  # no trouble yet, or the fleet is just closing
            pass
        return self._trouble
