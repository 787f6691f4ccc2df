"""What a message costs a node, and how much a link carries under load.

    costs   ping x rounds, data there x rounds, data back x rounds      CPU time of the process that asks
    load    chunk chunk chunk chunk ... ─►    ◄─ seconds and bytes of the second half, by the receiver's clock

The receiver's clock is used under load, because the answer may wait behind data on its way back. The first
half is not counted: a link may let a first burst through faster than it can go on. But if the receiver pauses
in the middle, chunks wait for it in the kernel, and the second half seems to come at once. Then all counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from weft.runtime.wire.frames import Header

# (what, tensors to send, bytes to get back) -> seconds there and back
Exchanging = Callable[[int, dict[str, Tensor] | None, int], float]

KIND_S, LEAST_ROUNDS = 0.5, 4  # of exchanges of one kind: a slow link takes long for each
CHUNKS = 16  # of one filling; the second half is timed
SMALLEST, LARGEST = 8 << 10, 512 << 10  # bytes of a chunk
FILLINGS = 3  # whose median counts: a pause of one end looks like a slow link
MOST_FILLINGS = 64  # senders whose chunks are counted at one time


@dataclass(frozen=True)
class MessageCost:
    """The median round trip of an empty message, and the CPU time of one message at this end."""

    rtt_s: float
    message_s: float
    byte_s: float


def message_cost(
    exchange: Exchanging, kinds: tuple[int, int, int], data: dict[str, Tensor], rounds: int
) -> MessageCost:
    """The costs of this process's end. `kinds` are the numbers of a ping, of data there, of data back."""
    size = sum(tensor.nbytes for tensor in data.values())
    ping, there, back = kinds
    cpu, trips = [], []
    for what, tensors, wanted in ((ping, None, 0), (there, data, 0), (back, None, size)):
        exchange(what, tensors, wanted)  # the first one may open something
        begin, until = time.process_time(), time.monotonic() + KIND_S
        times: list[float] = []
        while len(times) < rounds and (len(times) < LEAST_ROUNDS or time.monotonic() < until):
            times.append(exchange(what, tensors, wanted))
        trips.append(times)
        cpu.append((time.process_time() - begin) / len(times))
    both = (cpu[1] - cpu[0]) + (cpu[2] - cpu[0])  # sending the data once, taking it once
    per_byte = max(0.0, both / 2 / size) if size else 0.0
    return MessageCost(statistics.median(trips[0]), cpu[0] / 2, per_byte)


def link_rate(fill: Callable[[int], tuple[float, float]], fill_s: float) -> float:
    """Bytes per second of a link that is full. `fill` sends chunks of a size and returns (bytes, seconds)."""
    size = SMALLEST
    while True:
        count, seconds = fill(size)
        if 2 * seconds >= fill_s or size >= LARGEST:
            again = [(count, seconds), *(fill(size) for _ in range(FILLINGS - 1))]
            return statistics.median(c / max(s, 1e-6) for c, s in again)
        size *= 2


class _Count(NamedTuple):
    """Bytes that came since a moment."""

    since: float
    bytes: int = 0

    def more(self, size: int) -> _Count:
        return self._replace(bytes=self.bytes + size)


class Fillings:
    """The receiver's book: when the chunks of each sender arrived."""

    def __init__(self) -> None:
        # By sender and filling: when the first chunk came and the bytes since then; the same for the half.
        self._since: dict[tuple[str, int], tuple[_Count, _Count]] = {}

    def chunk(self, header: Header) -> tuple[float, float] | None:
        """A chunk came at `header.due`; `header.micro` are still to come. After the last one the result is
        (bytes, seconds) of the second half, or of all after the first chunk where that is slower."""
        now, left, size = header.due, header.micro, header.bytes
        key = (header.source, header.step)
        if left == CHUNKS - 1 and len(self._since) < MOST_FILLINGS:
            self._since[key] = _Count(now), _Count(now)
        elif key in self._since:
            whole, half = self._since[key]
            half = _Count(now) if left == CHUNKS // 2 else half.more(size)
            self._since[key] = whole.more(size), half
        if left > 0:
            return None
        counts = self._since.pop(key, (_Count(now),))
        slower = max(counts, key=lambda c: (now - c.since) / max(1, c.bytes))
        return float(slower.bytes), now - slower.since

    def forget(self) -> None:
        """The run is over."""
        self._since = {}
