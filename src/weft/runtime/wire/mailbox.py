"""Keeps tensors until an instruction asks for them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from torch import Tensor

from weft.errors import WeftError
from weft.runtime.wire.frames import HEADER_BYTES, Buffer, Header, Key
from weft.runtime.wire.links.shaping import sleep_until
from weft.runtime.wire.seal import LIFE_BITS

SPEC_BYTES = 512  # of the record of a tensor in a header
Name = tuple[int, str, int, int, int]  # version, kind, cut, micro-batch, part


class Cancelled(WeftError):
    """The wait was cancelled: another device failed, or the user stopped the run."""


class Letter:
    """A message that has arrived. It is decoded when it is taken."""

    __slots__ = ("header", "payload")

    def __init__(self, header: Header, payload: Buffer) -> None:
        self.header = header
        self.payload = payload

    @property
    def size(self) -> int:
        """The memory that it takes, roughly: its header counts too."""
        return len(self.payload) + HEADER_BYTES + SPEC_BYTES * len(self.header.tensors)


class Mailbox:
    """The letters of one run or plan, by key. Any thread may put letters; one thread takes them. A second
    letter with the same key is dropped.
    """

    def __init__(self, max_bytes: int = 4 << 30) -> None:
        # None: wake up and check.
        self._arrivals: queue.SimpleQueue[Letter | None] = queue.SimpleQueue()
        self._letters: dict[Key, Letter] = {}  # arrived, not asked for yet
        self._guard = threading.Lock()
        self._known: set[Key] = set()  # keys of what is here
        # For names of which only the newest counts: one that is due, and those on their way here.
        self._newest: dict[Name, list[Letter]] = {}
        self._numbers: dict[Name, int] = {}  # of the newest that came
        self._bytes = 0
        self._max_bytes = max_bytes
        self._cancelled: str | None = None
        self.dropped = 0
        self.waits_for = ""  # the device whose letter is waited for

    def put(self, letter: Letter) -> bool:
        """Files a letter. False if it was dropped: it came twice, or the mailbox is full."""
        key, size = letter.header.key, letter.size
        name = (key[0], *key[2:])
        with self._guard:
            if name in self._newest:
                return self._put_newest(name, letter)
            if key in self._known or self._bytes + size > self._max_bytes:
                self.dropped += 1
                return False
            self._known.add(key)
            self._bytes += size
        self._arrivals.put(letter)
        return True

    def _put_newest(self, name: Name, letter: Letter) -> bool:
        """Letters may overtake each other where a line breaks or is opened: an older one is dropped."""
        before, number = self._newest[name], letter.header.count
        last = self._numbers.get(name, number)
        kept = _from_newest_due(before) if letter.header.due else []
        more = letter.size + _size(kept) - _size(before)
        older = number < last and number >> LIFE_BITS == last >> LIFE_BITS
        if older or self._bytes + more > self._max_bytes:
            self.dropped += 1
            return False
        self._newest[name], self._numbers[name] = [*kept, letter], number
        self._bytes += more
        return True

    def keep_newest(self, name: Name) -> None:
        """From now on only the newest letter of this name is kept, of any minibatch."""
        with self._guard:
            self._newest.setdefault(name, [])

    def newest(self, name: Name) -> Letter | None:
        """The newest letter of a name, if one has arrived since the last was taken. Never waits."""
        with self._guard:
            letters = self._newest.get(name, [])
            left = _from_newest_due(letters)
            if not left or left[0].header.due > time.monotonic():
                return None
            self._newest[name] = left[1:]
            self._bytes -= _size(letters) - _size(left[1:])
            return left[0]

    def take(self, key: Key, seconds: float, who: Callable[[], str], source: str = "") -> Letter:
        """Waits for the letter until it has arrived and is due. Raises WeftError after `seconds`; `who` names
        the letter and `source` its sender."""
        letter = self._letters.pop(key, None)
        if letter is None:
            self.waits_for = source
            letter = self._await(key, time.monotonic() + seconds)
            self.waits_for = ""
        if letter is None:
            raise WeftError(
                f"waited {seconds:g} s for {who()}; is it still running and reachable? "
                "(--deadline sets how long to wait)"
            )
        self._known_no_more(letter)
        if letter.header.due:
            sleep_until(letter.header.due)
        return letter

    @property
    def cancelled(self) -> str | None:
        """Why nobody waits any more; None while waiting is allowed."""
        return self._cancelled

    def has(self, key: Key) -> bool:
        """Whether the letter has arrived."""
        with self._guard:
            return key in self._known

    def take_by(self, key: Key, moment: float) -> Letter | None:
        """Waits for the letter until a moment of the clock; None if it has not arrived and become due by
        then."""
        letter = self._letters.pop(key, None) or self._await(key, moment)
        if letter is None:
            return None
        self._known_no_more(letter)
        if letter.header.due > moment:
            sleep_until(moment)
            return None
        if letter.header.due:
            sleep_until(letter.header.due)
        return letter

    def forget(self, step: int) -> int:
        """Drops the letters of minibatches up to this one, and returns their number."""
        while not self._arrivals.empty():
            came = self._arrivals.get_nowait()  # only this thread takes letters
            if came is None:
                self._arrivals.put(None)  # a wake-up for another wait: put it back
                break
            self._letters[came.header.key] = came
        stale = [letter for letter in self._letters.values() if letter.header.step <= step]
        for letter in stale:
            del self._letters[letter.header.key]
            self._known_no_more(letter)
        return len(stale)

    def _known_no_more(self, letter: Letter) -> None:
        with self._guard:
            if letter.header.key in self._known:  # the run may have ended meanwhile
                self._known.discard(letter.header.key)
                self._bytes -= letter.size

    def _await(self, key: Key, deadline: float) -> Letter | None:
        """The letter when it arrives; None if it has not arrived by the deadline."""
        while True:
            if self._cancelled is not None:
                raise Cancelled(self._cancelled)
            try:
                letter = self._arrivals.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if letter is None:
                continue
            if letter.header.key == key:
                return letter
            self._letters[letter.header.key] = letter

    def cancel(self, why: str) -> None:
        """Wakes a waiting thread with an error."""
        self._cancelled = why
        self._arrivals.put(None)

    @property
    def bytes(self) -> int:
        """What the letters that are here take."""
        return self._bytes

    def drop(self) -> None:
        """Forgets all letters. A thread that waits must have been woken up by `cancel`, or never will be."""
        with self._guard:
            self._arrivals = queue.SimpleQueue()
            self._letters = {}
            self._known = set()
            self._newest, self._numbers = {}, {}
            self._bytes = 0
            self.waits_for = ""


def _from_newest_due(letters: list[Letter]) -> list[Letter]:
    """The newest letter that is due, and those behind it; all while none is due."""
    now = time.monotonic()
    due = [place for place, letter in enumerate(letters) if letter.header.due <= now]
    return letters[due[-1] :] if due else letters


def _size(letters: list[Letter]) -> int:
    return sum(letter.size for letter in letters)


def nothing_missing(tensors: dict[str, Tensor], expected: dict[str, tuple[int, ...]]) -> str | None:
    """Why a message does not hold the tensors that the program expects; None if it does."""
    for name, shape in expected.items():
        if name not in tensors:
            return f"{name} is missing"
        if tuple(tensors[name].shape) != shape:
            return f"{name} has shape {tuple(tensors[name].shape)}, not {shape}"
    return None
