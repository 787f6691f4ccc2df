"""Emulated links: when a message that is ready now has left, and when it arrives.

A channel is a clock that says until when it is taken. A message takes it for bytes / rate from the moment it
is free (first come, first served), so a late wake-up never lowers the rate. A link's direction belongs to
one sender and its clock is a number in that process; a shared medium has many senders, and its clock
lies in a small file that they lock.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Protocol

try:  # not on Windows, where a shared medium cannot be emulated
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

from weft.errors import InputError


class Clock(Protocol):
    """Books a channel: (when the message begins to leave, when it has left)."""

    def book(self, now: float, seconds: float) -> tuple[float, float]: ...


class OwnClock:
    """A link's direction: only this process sends on it."""

    def __init__(self) -> None:
        self._free = 0.0

    def book(self, now: float, seconds: float) -> tuple[float, float]:
        start = max(now, self._free)
        self._free = start + seconds
        return start, self._free


class SharedClock:
    """A medium: every member's process maps the same eight bytes and books under a lock."""

    def __init__(self, path: Path) -> None:
        if fcntl is None:
            raise InputError("a shared medium can only be emulated where files can be locked")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self._file).st_size < 8:
            os.ftruncate(self._file, 8)
        self._map = mmap.mmap(self._file, 8)

    def book(self, now: float, seconds: float) -> tuple[float, float]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            start = max(now, struct.unpack("d", self._map[:8])[0])
            self._map[:8] = struct.pack("d", start + seconds)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        return start, start + seconds

    def close(self) -> None:
        self._map.close()
        os.close(self._file)


def sleep_until(moment: float) -> None:
    """Sleeps to a moment of the monotonic clock; the last stretch in short naps, to be on time."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left if left < 0.002 else left - 0.001)
