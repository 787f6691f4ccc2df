"""What a message costs a node, and how much a link carries under load.

    costs   ping x rounds, data there x rounds, data back x rounds      CPU time of the process that asks
    load    chunk chunk chunk chunk ... ─►    ◄─ seconds and bytes of the second half, by the receiver's clock

The receiver's clock is used under load, because the answer may wait behind data on its way back. The first
half is not counted: a link may let a first burst through faster than it can go on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

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


class Fillings:
    """The receiver's book: when the chunks of each sender arrived."""

    def __init__(self) -> None:
        self._half: dict[tuple[str, int], tuple[float, int]] = {}

    def chunk(self, header: Header) -> tuple[float, float] | None:
        """A chunk came at `header.due`; `header.micro` are still to come. After the last one the result is
        (bytes, seconds) of the second half."""
        now, left, size = header.due, header.micro, header.bytes
        key = (header.source, header.step)
        if left == CHUNKS // 2 and len(self._half) < MOST_FILLINGS:
            self._half[key] = now, 0
        elif key in self._half:
            since, count = self._half[key]
            self._half[key] = since, count + size
        if left > 0:
            return None
        since, count = self._half.pop(key, (now, 0))
        return float(count), now - since

    def forget(self) -> None:
        """The run is over."""
        self._half = {}
