"""Where tensors wait for the instruction that asks for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from torch import Tensor

from weft.errors import WeftError
from weft.runtime.shaping import sleep_until
from weft.runtime.wire import Header, Key


class Cancelled(WeftError):
    """The wait was ended from outside: another device failed, or the user stopped the run."""


class Letter:
    """A message that has arrived; it is decoded by the one who takes it."""

    __slots__ = ("header", "payload")

    def __init__(self, header: Header, payload: bytes) -> None:
        self.header = header
        self.payload = payload


class Mailbox:
    """Letters by key. A second letter with a known key is a double and is dropped."""

    def __init__(self, max_bytes: int = 4 << 30) -> None:
        self._letters: dict[Key, Letter] = {}
        self._fresh = threading.Condition()
        self._cancelled: str | None = None
        self._bytes = 0
        self._max_bytes = max_bytes
        self.dropped = 0

    def put(self, letter: Letter) -> bool:
        """False where it was dropped: a double, or more than this device may hold."""
        with self._fresh:
            if letter.header.key in self._letters or (
                self._bytes + len(letter.payload) > self._max_bytes
            ):
                self.dropped += 1
                return False
            self._letters[letter.header.key] = letter
            self._bytes += len(letter.payload)
            self._fresh.notify_all()
            return True

    def take(self, key: Key, seconds: float, who: Callable[[], str]) -> Letter:
        """The letter, once it is there and due; WeftError after `seconds` (`who` says from whom)."""
        deadline = time.monotonic() + seconds
        with self._fresh:
            while key not in self._letters:
                if self._cancelled is not None:
                    raise Cancelled(self._cancelled)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WeftError(
                        f"waited {seconds:g} s for {who()}; is it still running and reachable? "
                        "(--deadline sets how long to wait)"
                    )
                self._fresh.wait(left)
            letter = self._letters.pop(key)
            self._bytes -= len(letter.payload)
        if letter.header.due:
            sleep_until(letter.header.due)
        return letter

    def cancel(self, why: str) -> None:
        """Wakes whoever waits, with an error."""
        with self._fresh:
            self._cancelled = why
            self._fresh.notify_all()

    def clear(self) -> None:
        with self._fresh:
            self._letters.clear()
            self._bytes = 0
            self._cancelled = None


def nothing_missing(tensors: dict[str, Tensor], expected: dict[str, tuple[int, ...]]) -> str | None:
    """Why a message does not hold what the program expects, or None."""
    for name, shape in expected.items():
        if name not in tensors:
            return f"{name} is missing"
        if tuple(tensors[name].shape) != shape:
            return f"{name} has shape {tuple(tensors[name].shape)}, not {shape}"
    return None
