"""Simulates a program on its plan's fleet. Each device computes one thing at a time, and each channel carries
one message at a time.

    timeline = simulate(lower(plan), steps=3)
    timeline.step_s

A device executes its instructions one after the other; a receive waits for its message, a send
only puts the message into the queue of its first channel. A channel serves messages in the order in
which they reach it (at the same moment: those passing through before new ones, earlier sent before
later, devices in the order of the program). On a route of several channels a message

    store_and_forward   reaches the next channel when all of it has arrived at the relay
    min                 reaches it with its first byte, and is complete no earlier than its last

        channel 1   ├──────────┤              channel 1   ├──────────┤
        channel 2               ├────┤        channel 2     ├────┤·····┤ last byte
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import msgspec

from weft.errors import InputError, WeftError
from weft.program.program import Program
from weft.program.timeline import Span, Timeline
from weft.simulate.compiled import (
    COMPUTE,
    PASS,
    RECV,
    SEND,
    SLOT,
    Compiled,
    Line,
    Way,
    Words,
    compile_program,
)
from weft.simulate.windows import Windows

# (message * steps + minibatch, next hop, when its last byte arrives, route, description)
_Message = tuple[int, int, float, Way, Words]

# (when, kind, when it was sent, device, number, message). Messages at a relay come before devices, in the
# order in which they were sent: by moment, device, and their number at that device. No two events are equal.
_Event = tuple[float, int, float, int, int, _Message | None]
_RELAYED, _DEVICE = range(2)


def simulate(program: Program, steps: int = 1, spans: bool = True) -> Timeline:
    """The timeline of `steps` minibatches. Without spans it has only the minibatches' ends."""
    timeline = run(compile_program(program), program.plan.route == "min", steps, spans)
    return msgspec.structs.replace(timeline, beat=max(2, program.beat))


def run(
    compiled: Compiled,
    cut_through: bool,
    steps: int,
    spans: bool,
    windows: Windows | None = None,
) -> Timeline:
    """The same for a program that is compiled already. `windows`: when devices are slower and links cut."""
    if steps < 1:
        raise InputError(f"simulate: steps = {steps}; at least 1 is allowed")
    simulation = _Simulation(compiled, cut_through, steps, spans, windows)
    simulation.to_the_end()
    return Timeline(spans=tuple(simulation.spans), step_ends=tuple(simulation.ends))


class _Simulation:
    """Always handles the event that comes first in time. Between two sends a device uses nothing that others
    use, so it is run up to its next send at once. Only sends and relays wait in the heap.

    A send over a channel that only this device uses need not wait for its turn either (`turns`).
    """

    def __init__(
        self,
        compiled: Compiled,
        cut_through: bool,
        steps: int,
        record: bool,
        windows: Windows | None,
    ) -> None:
        self.compiled = compiled
        self.windows = windows
        self.cut_through = cut_through
        self.steps = steps
        self.record = record
        self.spans: list[Span] = []
        self.ends = [0.0] * steps
        count = len(compiled.devices)
        self.clocks = [0.0] * count  # of the devices that wait
        self.free = [0.0] * len(compiled.channels)  # the time when each channel's queue is empty
        self.arrived: dict[int, float] = {}  # by message * steps + minibatch
        self.waiting: dict[int, int] = {}  # the device that waits for it
        self.heap: list[_Event] = [(0.0, _DEVICE, 0.0, n, 0, None) for n in range(count)]
        self.each = record or windows is not None  # every instruction is looked at on its own
        self.own = frozenset[int]() if self.each else compiled.own
        self.due = [_Due(code, steps) for code in compiled.code]

    def to_the_end(self) -> None:
        heap = self.heap
        running = [self.device(number) for number in range(len(self.compiled.devices))]
        while heap:
            time, _, since, device, sent, message = heappop(heap)
            if message is None:
                next(running[device], None)
            else:
                self.cross(time, since, device, sent, message)
        if self.waiting:
            raise WeftError(self.standstill())

    def device(self, device: int) -> Iterator[None]:
        """Runs a device. It yields where it has to wait: for a message, or for its turn to send."""
        steps, heap, arrived, ends = self.steps, self.heap, self.arrived, self.ends
        waiting, free, own, due = self.waiting, self.free, self.own, self.due[device]
        clock, sent = 0.0, 0
        for tick in range(steps + self.compiled.lags[device]):
            for word, lag, run, number, way, words, _ in due.lines(tick):
                if word == COMPUTE:
                    if self.each:
                        run = self.computed(device, words, clock, run, tick - lag)
                    for seconds in run:
                        clock += seconds
                elif word == RECV:
                    key = number * steps + tick - lag
                    if key not in arrived:
                        waiting[key] = device
                        self.clocks[device] = clock
                        yield
                    arrival = arrived.pop(key)
                    if arrival > clock:
                        if self.record:
                            self.note(device, words, clock, arrival, tick - lag)
                        clock = arrival
                elif word == SEND:
                    key = number * steps + tick - lag
                    if way and way[0][0] in own:
                        if len(way) == 1:  # `cross`, without its calls
                            channel, seconds, latency = way[0]
                            left = free[channel]
                            left = free[channel] = (left if left > clock else clock) + seconds
                            arrived[key] = left + latency
                            if key in waiting:
                                self.wake(waiting.pop(key), left + latency)
                            continue
                    elif heap:
                        time, kind, _, who, _, _ = heap[0]
                        if time < clock or (time == clock and (kind == _RELAYED or who < device)):
                            heappush(heap, (clock, _DEVICE, 0.0, device, 0, None))
                            yield
                    sent += 1
                    self.cross(clock, clock, device, sent, (key, 0, clock, way, words))
                elif word == SLOT:
                    end = (tick - lag) * self.compiled.slotted_s + run[0]
                    if end > clock:
                        if self.record:
                            self.note(device, words, clock, end, tick - lag)
                        clock = end
                elif clock > ends[tick - lag]:
                    ends[tick - lag] = clock

    def computed(
        self, device: int, words: Words, clock: float, run: list[float], step: int
    ) -> list[float]:
        """The seconds of computations of which the first begins at `clock`."""
        if self.windows is not None:
            (seconds,) = run
            run = [self.windows.compute_s(device, clock, seconds)]
        if self.record:
            self.note(device, words, clock, clock + run[0], step)
        return run

    def cross(self, now: float, since: float, source: int, sent: int, message: _Message) -> None:
        """A message reaches the queue of its next channel, or its destination when none is left. `since`,
        `source` and `sent` say when it was sent, by whom, and how many that device had sent by then."""
        key, hop, complete, way, words = message
        if hop < len(way):
            channel, seconds, latency = way[hop]
            free = self.free[channel]
            start = free if free > now else now
            end = start + seconds
            if self.windows is not None:
                end = self.windows.left_s(channel, start, seconds)
            self.free[channel] = end
            if self.record:
                where = self.compiled.channels[channel]
                what, micro, label, size = words
                step = key % self.steps
                self.spans.append(Span(where, what, start, end, step, micro, label, size))
            complete = (complete if complete > end else end) + latency
            hop += 1
            if hop < len(way):
                reached = start + latency if self.cut_through else complete
                onward = key, hop, complete, way, words
                heappush(self.heap, (reached, _RELAYED, since, source, sent, onward))
                return
        self.arrived[key] = complete
        device = self.waiting.pop(key, None)
        if device is not None:
            self.wake(device, complete)

    def wake(self, device: int, arrival: float) -> None:
        """A device goes on when the message that it waits for has arrived."""
        clock = self.clocks[device]
        when = arrival if arrival > clock else clock
        heappush(self.heap, (when, _DEVICE, 0.0, device, 0, None))

    def note(self, device: int, words: Words, start: float, end: float, step: int) -> None:
        what, micro, label, _ = words
        self.spans.append(Span(self.compiled.devices[device], what, start, end, step, micro, label))

    def standstill(self) -> str:
        waits = []
        for key, device in sorted(self.waiting.items(), key=lambda item: item[1]):
            number, step = divmod(key, self.steps)
            source, dest, tensor = self.compiled.messages[number]
            waits.append(
                f"{dest} waits for {tensor} of minibatch {step} from {source} "
                f"since {self.clocks[device]:.6g} s"
            )
        return "the program comes to a standstill: " + "; ".join(waits)


class _Due:
    """The lines of a device that are due at each tick. Mostly all of them are. A thousand classes are many
    lines of an exchange, and most minibatches have none."""

    def __init__(self, code: list[Line], steps: int) -> None:
        self.code = code
        self.steps = steps
        self.kinds = {(line[1], line[6]) for line in code}  # (lag, every)
        self.known: dict[frozenset[tuple[int, int]], list[Line]] = {}

    def lines(self, tick: int) -> list[Line]:
        kinds = frozenset(
            (lag, every)
            for lag, every in self.kinds
            if 0 <= tick - lag < self.steps and (tick - lag + 1) % every == 0
        )
        if kinds not in self.known:
            self.known[kinds] = [
                line for line in self.code if (line[1], line[6]) in kinds and line[0] != PASS
            ]
        return self.known[kinds]
