"""Devices and one medium, event by event in the order of time: like weft.simulate, but for one channel.

    finish([gateway, first, second], latency_s=0.0)       # the second when the last of them is done

A device does one line after the other. A receive waits for its message; a send only puts its message
into the queue. The medium carries one message after the other, in the order of the sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

COMPUTE, SEND, RECV = range(3)
Line = tuple[int, float, int]  # what, seconds (for a message: on the medium), message
Code = list[tuple[Line, ...]]  # by device
# A number that is added to the messages' numbers, and the lines.
Part = tuple[int, tuple[Line, ...]]


def finish(code: Sequence[Sequence[Part]], latency_s: float) -> float:
    """The second when the last device is done.

    The device with the earliest clock goes on until it must wait for a message, or for its turn to send.
    """
    clocks, at = [0.0] * len(code), [(0, 0)] * len(code)
    arrived: dict[int, float] = {}
    waiting: dict[int, int] = {}  # by message: the device that waits for it
    heap = [(0.0, d) for d in range(len(code))]
    free = 0.0
    while heap:
        _, d = heappop(heap)
        parts, clock, (part, place) = code[d], clocks[d], at[d]
        while part < len(parts):
            base, lines = parts[part]
            while place < len(lines):
                what, spent, message = lines[place]
                if what == COMPUTE:
                    clock += spent
                elif what == RECV:
                    arrival = arrived.get(base + message)
                    if arrival is None:
                        waiting[base + message] = d
                        break
                    if arrival > clock:
                        clock = arrival
                else:
                    if heap and heap[0] < (clock, d):
                        heappush(heap, (clock, d))
                        break
                    free = (free if free > clock else clock) + spent
                    arrived[base + message] = arrival = free + latency_s
                    other = waiting.pop(base + message, None)
                    if other is not None:
                        heappush(heap, (max(arrival, clocks[other]), other))
                place += 1
            else:
                part, place = part + 1, 0
                continue
            break
        clocks[d], at[d] = clock, (part, place)
    return max(clocks)
