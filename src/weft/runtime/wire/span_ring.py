"""A device's newest spans, packed: 46 bytes each, where a list of them takes ten times as much memory.

    ring = SpanRing(most=50_000)
    ring.add("pi", "forward", 0.1, 0.2, 7, 0, "0-3")     # the oldest goes when the ring is full
    list(ring)                                           # spans, the oldest first
    next(reversed(ring))                                 # the newest

Any thread may add. Who reads gets the spans of the moment at which the reading began.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

from weft.program.timeline import Span

# Start and end; minibatch, micro-batch and bytes; the numbers of three words.
PACKED = struct.Struct("<ddqqqHHH")
MOST_WORDS = 1 << 16
FIRST = 256  # spans that have room at the beginning; then twice as many each time
OTHER = "…"  # stands for further words, when there are too many different ones


class SpanRing:
    """Keeps the newest `most` spans."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray(min(FIRST, most) * PACKED.size)
        self._count = 0  # of all spans that were added
        self._words: list[str] = [OTHER]
        self._numbers: dict[str, int] = {OTHER: 0}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return min(self._count, self._most)

    def add(
        self, where: str, what: str, start: float, end: float, step: int, micro: int, label: str,
        size: int = 0,
    ) -> None:  # fmt: skip
        """Adds a span, by its fields; a full ring forgets its oldest one."""
        with self._guard:
            count, data, numbers = self._count, self._data, self._numbers
            place = count % self._most * PACKED.size
            if place == len(data):
                more = min(count, self._most - count)
                data.extend(bytes(more * PACKED.size))
            try:
                words = numbers[where], numbers[what], numbers[label]
            except KeyError:
                words = self._number(where), self._number(what), self._number(label)
            PACKED.pack_into(data, place, start, end, step, micro, size, *words)
            self._count = count + 1

    def __iter__(self) -> Iterator[Span]:
        data, begin, count = self._now()
        return (self._span(data, (begin + n) % self._most) for n in range(count))

    def __reversed__(self) -> Iterator[Span]:
        data, begin, count = self._now()
        return (self._span(data, (begin + n) % self._most) for n in reversed(range(count)))

    def _now(self) -> tuple[bytes, int, int]:
        """(a copy of the data, the place of the oldest span, how many there are)"""
        with self._guard:
            count = len(self)
            return bytes(self._data), (self._count - count) % self._most, count

    def _span(self, data: bytes, place: int) -> Span:
        start, end, step, micro, size, where, what, label = PACKED.unpack_from(
            data, place * PACKED.size
        )
        words = self._words
        return Span(words[where], words[what], start, end, step, micro, words[label], size)

    def _number(self, word: str) -> int:
        number = self._numbers.get(word)
        if number is None:
            if len(self._words) == MOST_WORDS:
                return 0
            number = self._numbers[word] = len(self._words)
            self._words.append(word)
        return number
