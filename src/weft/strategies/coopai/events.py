"""Rounds on one shared medium, event by event: a small and fast model of the simulator.

    clock = Latency(MediumCost(byte_s=8e-8))
    times = clock.exchange(START, up, down, waits, inner, outer)     # one more round

Every device sends up what others lack as soon as it has finished. The medium carries one message at a
time, in the order of the sends. The gateway receives in the order of the devices. It sends each device
what it lacks as soon as it has that. Meanwhile a device computes its inner rows, and then the others.

`Load` instead counts how long each device and the medium are occupied. With many frames in flight, the
one that is occupied longest limits the number of frames per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from weft.strategies.coopai.rows import Floats

Numbers = Sequence[float]


class MediumCost(NamedTuple):
    """The cost of a byte on the gateway's medium."""

    byte_s: float  # seconds per byte
    latency_s: float = 0.0
    # The cost of a byte of the image compared with others, because codecs differ.
    image: float = 1.0


class Times(NamedTuple):
    """The seconds when each device, the medium and the gateway become free."""

    ready: tuple[float, ...]  # when each device has finished its work
    free: float = 0.0  # when the medium becomes free
    gateway: float = 0.0  # when the gateway has everything that it needs to go on


class Clock(Protocol):
    """How a round changes the times. Bytes and seconds are by device.

    `seat` is the gateway's place among the devices if it computes too. It sends nothing while it computes.
    """

    channel: MediumCost
    seat: int | None

    def exchange(
        self, times: Times, up: Numbers, down: Numbers, waits: Sequence[int],
        inner: Numbers, outer: Numbers,
    ) -> Times:  # fmt: skip
        """Rows are sent up and down. A device computes inner rows at once, outer rows when it has all."""

    def gather(self, times: Times, up: Numbers) -> Times:
        """Every device sends to the gateway, which goes on when it has everything."""

    def hand_out(self, times: Times, down: Numbers, compute: Numbers, image: bool) -> Times:
        """The gateway has everything and sends to one device after the other; each then computes."""

    def alone(self, times: Times, compute: float) -> Times:
        """The gateway has everything and computes itself."""

    def bound(
        self, ready: Floats, free: Floats, queue: Floats, inner: Floats, outer: Floats
    ) -> tuple[Floats, Floats]:
        """Lower bounds of `last` and `mean` after an exchange, for many candidates at once.

        Devices are the last dimension. `queue`: bytes on the medium before each device has what it lacks.
        """

    def last(self, times: Times, gathered: bool) -> float:
        """The second when everything is done; `gathered`: when the gateway has everything."""

    def mean(self, times: Times, gathered: bool) -> float:
        """The average second when devices are done: it tells which of two ways is better to go on from."""


class Latency:
    """The times of one frame that is alone."""

    def __init__(self, channel: MediumCost, seat: int | None = None) -> None:
        self.channel = channel
        self.seat = seat

    def relaying(self, times: Times) -> float:
        """The second when the gateway can send."""
        return times.gateway if self.seat is None else max(times.gateway, times.ready[self.seat])

    def exchange(
        self, times: Times, up: Numbers, down: Numbers, waits: Sequence[int],
        inner: Numbers, outer: Numbers,
    ) -> Times:  # fmt: skip
        byte_s, latency = self.channel.byte_s, self.channel.latency_s
        ready, free, clock = times.ready, times.free, self.relaying(times)
        senders = sorted((ready[d], d) for d in range(len(ready)) if up[d])
        arrival = [-1.0] * len(ready)
        sent = 0
        received = -1  # the gateway has received the messages of all devices up to this one
        done = []
        for d, lacks in enumerate(down):
            begin = ready[d] + inner[d]
            if lacks:
                while received < waits[d]:
                    received += 1
                    while up[received] and arrival[received] < 0:
                        when, sender = senders[sent]
                        sent += 1
                        free = max(free, when) + up[sender] * byte_s
                        arrival[sender] = free + latency
                    clock = max(clock, arrival[received])
                while sent < len(senders) and senders[sent][0] <= clock:
                    when, sender = senders[sent]
                    sent += 1
                    free = max(free, when) + up[sender] * byte_s
                    arrival[sender] = free + latency
                free = max(free, clock) + lacks * byte_s
                begin = max(begin, free + latency)
            done.append(begin + outer[d])
        return Times(tuple(done), free, clock)

    def gather(self, times: Times, up: Numbers) -> Times:
        free, clock = times.free, self.relaying(times)
        for when, d in sorted((when, d) for d, when in enumerate(times.ready)):
            if up[d]:
                free = max(free, when) + up[d] * self.channel.byte_s
                clock = max(clock, free + self.channel.latency_s)
        return Times(times.ready, free, clock)

    def hand_out(self, times: Times, down: Numbers, compute: Numbers, image: bool) -> Times:
        byte_s = self.channel.byte_s * (self.channel.image if image else 1.0)
        free, clock = times.free, self.relaying(times)
        done = []
        for d, lacks in enumerate(down):
            begin = times.ready[d]
            if lacks:
                free = max(free, clock) + lacks * byte_s
                begin = max(begin, free + self.channel.latency_s)
            done.append(begin + compute[d])
        return Times(tuple(done), free, clock)

    def alone(self, times: Times, compute: float) -> Times:
        done = self.relaying(times) + compute
        return Times(_at(times.ready, self.seat, done), times.free, done)

    def bound(
        self, ready: Floats, free: Floats, queue: Floats, inner: Floats, outer: Floats
    ) -> tuple[Floats, Floats]:
        done = np.maximum(ready + inner, free[..., None] + queue * self.channel.byte_s) + outer
        return done.max(axis=-1), done.mean(axis=-1)

    def last(self, times: Times, gathered: bool) -> float:
        return times.gateway if gathered else max(times.ready)

    def mean(self, times: Times, gathered: bool) -> float:
        return times.free if gathered else sum(times.ready) / len(times.ready)


class OwnLinks(Latency):
    """The same if every device has a link of its own to the gateway in each direction.

    Messages of different devices do not wait for each other. A byte on a slower link counts as more bytes.
    """

    def exchange(
        self, times: Times, up: Numbers, down: Numbers, waits: Sequence[int],
        inner: Numbers, outer: Numbers,
    ) -> Times:  # fmt: skip
        byte_s, latency = self.channel.byte_s, self.channel.latency_s
        clock = self.relaying(times)
        received = -1
        done = []
        for d, lacks in enumerate(down):
            begin = times.ready[d] + inner[d]
            if lacks:
                while received < waits[d]:
                    received += 1
                    if up[received]:
                        clock = max(clock, times.ready[received] + up[received] * byte_s + latency)
                begin = max(begin, clock + lacks * byte_s + latency)
            done.append(begin + outer[d])
        return Times(tuple(done), times.free, clock)

    def gather(self, times: Times, up: Numbers) -> Times:
        byte_s, latency = self.channel.byte_s, self.channel.latency_s
        arrivals = [when + up[d] * byte_s + latency for d, when in enumerate(times.ready) if up[d]]
        return times._replace(gateway=max([self.relaying(times), *arrivals]))

    def hand_out(self, times: Times, down: Numbers, compute: Numbers, image: bool) -> Times:
        byte_s = self.channel.byte_s * (self.channel.image if image else 1.0)
        clock, latency = self.relaying(times), self.channel.latency_s
        done = []
        for d, lacks in enumerate(down):
            begin = max(times.ready[d], clock + lacks * byte_s + latency if lacks else 0.0)
            done.append(begin + compute[d])
        return Times(tuple(done), times.free, clock)

    def bound(
        self, ready: Floats, free: Floats, queue: Floats, inner: Floats, outer: Floats
    ) -> tuple[Floats, Floats]:
        done = ready + inner + outer
        return done.max(axis=-1), done.mean(axis=-1)

    def mean(self, times: Times, gathered: bool) -> float:
        return super().mean(times._replace(free=times.gateway), gathered)


class Load:
    """Many frames: the seconds that one frame occupies each device and the medium."""

    def __init__(self, channel: MediumCost, seat: int | None = None) -> None:
        self.channel = channel
        self.seat = seat

    def exchange(
        self, times: Times, up: Numbers, down: Numbers, waits: Sequence[int],
        inner: Numbers, outer: Numbers,
    ) -> Times:  # fmt: skip
        taken = (sum(up) + sum(down)) * self.channel.byte_s
        work = zip(times.ready, inner, outer, strict=True)
        return Times(tuple(t + a + b for t, a, b in work), times.free + taken)

    def gather(self, times: Times, up: Numbers) -> Times:
        return Times(times.ready, times.free + sum(up) * self.channel.byte_s)

    def hand_out(self, times: Times, down: Numbers, compute: Numbers, image: bool) -> Times:
        byte_s = self.channel.byte_s * (self.channel.image if image else 1.0)
        ready = tuple(t + c for t, c in zip(times.ready, compute, strict=True))
        return Times(ready, times.free + sum(down) * byte_s)

    def alone(self, times: Times, compute: float) -> Times:
        assert self.seat is not None
        done = times.ready[self.seat] + compute
        return Times(_at(times.ready, self.seat, done), times.free)

    def bound(
        self, ready: Floats, free: Floats, queue: Floats, inner: Floats, outer: Floats
    ) -> tuple[Floats, Floats]:
        taken = free + np.maximum(queue.max(axis=-1), 0.0) * self.channel.byte_s
        done = ready + inner + outer
        return np.maximum(taken, done.max(axis=-1)), taken + done.mean(axis=-1)

    def last(self, times: Times, gathered: bool) -> float:
        return max(times.free, *times.ready)

    def mean(self, times: Times, gathered: bool) -> float:
        return times.free + sum(times.ready) / len(times.ready)


def _at(ready: tuple[float, ...], place: int | None, when: float) -> tuple[float, ...]:
    return tuple(when if d == place else time for d, time in enumerate(ready))
