"""Emulated links: when a message begins to leave, and when it has left.

A channel is a clock that says until when the channel is busy. A message books it for bytes / rate seconds,
from the moment when it is free (first come, first served). So a late wake-up never lowers the rate. A link's
direction has one sender, and its clock is a number in that process. A shared medium has many senders, and its
clock is a small file that they lock. A job only names the clock. The process that started the node for an
emulation chose the folder; a node without a folder emulates no shared medium.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
import struct
import threading
import time
import weakref
from pathlib import Path
from typing import Protocol

try:  # not on Windows, where a shared medium cannot be emulated
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

from weft.errors import InputError

CLOCK = re.compile(r"[0-9a-f]{1,64}")


def clock_name(medium: str) -> str:
    """The name of a medium's clock, the same for all of its members."""
    return hashlib.sha256(medium.encode()).hexdigest()[:32]


def clock_path(folder: Path | None, name: str) -> Path:
    """The file of a clock. The name comes from the network, so it must not lead out of the folder."""
    if not CLOCK.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} is no name of a shared medium's clock; 1 to 64 of 0-9 and a-f are allowed"
        )
    if folder is None:
        raise InputError(
            "this node emulates no shared media: it was not started as part of an emulated fleet "
            "(use --local, or a fleet file without a medium)"
        )
    return folder / name


class Clock(Protocol):
    """Books a channel: (when the message begins to leave, when it has left)."""

    def book(self, now: float, seconds: float) -> tuple[float, float]: ...


class OwnClock:
    """The clock of a link's direction: only this process sends on it."""

    def __init__(self) -> None:
        self._free = 0.0

    def book(self, now: float, seconds: float) -> tuple[float, float]:
        start = max(now, self._free)
        self._free = start + seconds
        return start, self._free


_BOOKING = threading.Lock()  # the lock of a file keeps out other processes, not threads of this one


class SharedClock:
    """The clock of a medium: every member's process maps the same eight bytes and books under a lock."""

    def __init__(self, path: Path) -> None:
        if fcntl is None:
            raise InputError("a shared medium can only be emulated where files can be locked")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            why = error.strerror
            raise InputError(f"the clock {path.name} cannot be opened: {why}") from None
        # A run's channels end in several threads. The file is closed when the last of them has ended.
        self._close = weakref.finalize(self, os.close, self._file)
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode) or found.st_size not in (0, 8):
            self._close()
            raise InputError(f"{path.name} is not the clock of a shared medium")
        os.ftruncate(self._file, 8)
        self._map = mmap.mmap(self._file, 8)

    def book(self, now: float, seconds: float) -> tuple[float, float]:
        with _BOOKING:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                start = max(now, struct.unpack("d", self._map[:8])[0])
                self._map[:8] = struct.pack("d", start + seconds)
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)
        return start, start + seconds

    def close(self) -> None:
        self._map.close()
        self._close()


def sleep_until(moment: float) -> None:
    """Sleeps until a moment of the monotonic clock. The last part is slept in short pieces, to be on time."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left if left < 0.002 else left - 0.001)
