"""A program with the time of every instruction, so that the simulator need not look anything up.

    compiled = compile_program(program)
    compiled.seconds["pi"]           # computing per minibatch
    compiled.bytes["pi>nuc"]         # crossing that channel per minibatch

Every duration and route is computed once for all simulated minibatches. Where the profile knows what a
message costs the runtime of a device, the device is busy for that time before it sends and after it has
received. The same holds for what a codec costs. A sum of gradients is coded once, for all who get it.

The work for the bytes of a message is done while the link carries them. Only what takes longer than the link
comes before or after it, but all of it counts as work of the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.codecs.registry import CodecName, coded_bytes
from weft.fleet.fleet import Hop
from weft.plans.profile import messages_cost
from weft.program.cost import TIMED, compute_seconds
from weft.program.instructions import (
    Backward,
    Clip,
    Forward,
    Instruction,
    Load,
    Pool,
    Radio,
    Recv,
    Reduce,
    Send,
    Squares,
    Stitch,
    Tensor,
    Update,
    every,
)
from weft.program.program import Program
from weft.simulate.turns import Turns

COMPUTE, RECV, SEND, MARK, SLOT, PASS = range(6)  # PASS: takes no time and does not wait

# (channel, seconds that the message occupies it, latency) for every hop of a message's route
Way = tuple[tuple[int, float, float], ...]

# How a span describes an instruction: (what, micro-batch, label, bytes)
Words = tuple[str, int, str, int]

# (word, lag, seconds of a COMPUTE or a SLOT, number of a RECV's or SEND's message, route of a SEND,
# description, k if executed at each k-th minibatch). MARK follows a device's last instruction of a minibatch.
# SLOT waits until so many seconds of its minibatch are over: a message that may be late has arrived by then,
# or the device goes on without it. Without words, computations that follow each other are one line, with the
# seconds of each.
Line = tuple[int, int, list[float], int, Way, Words, int]
NO_WORDS: Words = ("", 0, "", 0)
_PASSES = (Forward, Backward)


@dataclass(frozen=True)
class Compiled:
    """A program with numbers in place of names: what the simulator runs."""

    devices: list[str]
    channels: list[str]
    messages: list[tuple[str, str, Tensor]]  # by number: from, to, what
    code: list[list[Line]]  # by device
    lags: list[int]  # the largest, by device
    seconds: dict[str, float]  # computing per minibatch, by device
    bytes: dict[str, int]  # per minibatch, by channel (of a round: its share)
    occupied_s: dict[str, float]  # the seconds that these take, by channel
    messages_s: dict[str, float]  # the runtime's own time for messages per minibatch, by device
    slotted_s: float = 0.0  # of a minibatch whose slots follow the clock
    own: frozenset[int] = frozenset()  # channels whose messages need not wait for their turn

    @property
    def busy_s(self) -> dict[str, float]:
        """Seconds per minibatch in which a device computes or is busy with messages."""
        spent = {name: self.seconds.get(name, 0.0) for name in {**self.seconds, **self.messages_s}}
        return {name: s + self.messages_s.get(name, 0.0) for name, s in spent.items()}


def compile_program(program: Program, words: bool = True) -> Compiled:
    """Gives every device, channel and message of a program a number. Without words no span can be recorded:
    a planner that prices hundreds of candidates needs none."""
    compiler = _Compiler(program, words)
    lags = [max((i.lag for i in body), default=0) for body in program.code.values()]
    code = [
        compiler.device(device, body, lag)
        for (device, body), lag in zip(program.code.items(), lags, strict=True)
    ]
    return Compiled(
        devices=list(program.code),
        channels=list(compiler.channels),
        messages=list(compiler.numbers),
        code=code,
        lags=lags,
        seconds=compiler.seconds,
        bytes={channel: round(size) for channel, size in compiler.bytes.items()},
        occupied_s=compiler.occupied,
        messages_s=compiler.messages,
        slotted_s=compiler.swarm.step_s if compiler.swarm else 0.0,
        own=compiler.turns.own(),
    )


class _Compiler:
    def __init__(self, program: Program, words: bool) -> None:
        self.plan = program.plan
        self.words = words
        self.known: dict[tuple[str, type[Instruction], tuple[int, int], int], float] = {}
        # (channel, its number, bytes per second, latency) for every hop between two devices
        self.routes: dict[tuple[str, str], list[tuple[str, int, float, float]]] = {}
        self.paths: dict[tuple[str, str], tuple[Hop, ...]] = {}
        self.turns = Turns()
        self.swarm = program.plan.swarm
        self.channels: dict[str, int] = {}
        self.numbers: dict[tuple[str, str, Tensor], int] = {}
        self.seconds = dict.fromkeys(program.code, 0.0)
        self.bytes: dict[str, float] = {}
        self.occupied: dict[str, float] = {}
        self.messages: dict[str, float] = {}
        self.sizes = _sizes(program) if _costly(program) else {}

    def device(self, device: str, body: tuple[Instruction, ...], lag: int) -> list[Line]:
        final = next((n for n in reversed(range(len(body))) if body[n].lag == lag), -1)
        lines: list[Line] = []
        for n, i in enumerate(body):
            if isinstance(i, Send):
                self.add(lines, self.message_line(device, i) if self.sizes else None)
                lines.append(self.sending(device, i))
            elif isinstance(i, Recv):
                lines.append(self.receiving(device, i))
                self.add(lines, self.message_line(device, i) if self.sizes else None)
            elif self.words or isinstance(i, TIMED):
                self.add(lines, self.computing(device, i))
            if self.sizes and isinstance(i, Reduce) and i.codec != "none":
                self.add(lines, self.rounding_line(device, i))
            if n == final:
                lines.append((MARK, lag, [], 0, (), NO_WORDS, 1))
        return lines

    def add(self, lines: list[Line], line: Line | None) -> None:
        """Adds a computation. Without words it is joined to the one before it, and one that takes no time is
        left out: nothing would be seen of it."""
        if line is None or not (self.words or line[2][0]):
            return
        before = None if self.words or not lines else lines[-1]
        if before and before[0] == COMPUTE and before[1] == line[1] and before[6] == line[6]:
            before[2].append(line[2][0])
        else:
            lines.append(line)

    def receiving(self, device: str, i: Recv) -> Line:
        words = ("wait", i.tensor.micro, str(i.tensor), 0) if self.words else NO_WORDS
        if i.late != "wait" and self.swarm and self.swarm.slot_ms:
            end = (i.slot + 1) * self.swarm.slot_ms / 1e3
            return SLOT, i.lag, [end], 0, (), words, i.every
        number = self.number(i.source, device, i.tensor)
        return PASS if i.late == "newest" else RECV, i.lag, [], number, (), words, i.every

    def sending(self, device: str, i: Send) -> Line:
        number = self.number(device, i.dest, i.tensor)
        words = NO_WORDS
        if self.words:
            words = ("transfer", i.tensor.micro, str(i.tensor), i.bytes)
        return SEND, i.lag, [], number, self.way(device, i), words, i.every

    def computing(self, device: str, i: Instruction) -> Line:
        seconds, beat = self.compute(device, i), every(i)
        self.seconds[device] += seconds / beat
        return COMPUTE, i.lag, [seconds], 0, (), _words(i) if self.words else NO_WORDS, beat

    def compute(self, device: str, i: Instruction) -> float:
        """Seconds of an instruction. The pieces of a minibatch mostly have the same size, and then the same
        seconds."""
        if not isinstance(i, _PASSES) or i.work:
            return compute_seconds(self.plan.profile, device, i)
        key = device, type(i), i.layers, i.samples
        if key not in self.known:
            self.known[key] = compute_seconds(self.plan.profile, device, i)
        return self.known[key]

    def message_line(self, device: str, i: Send | Recv) -> Line | None:
        """What a message, and its codec, cost the device that sends or takes it."""
        if i.late == "newest":
            return None
        if isinstance(i, Recv) and i.late != "wait" and self.swarm and self.swarm.slot_ms:
            return None  # a slot is over when the clock says so
        ends = (device, i.dest) if isinstance(i, Send) else (i.source, device)
        size, codec = self.sizes.get((*ends, i.tensor), (0, "none"))
        hidden = self.carried_s(device, i, size)
        seconds = max(0.0, self.busy_with(device, size, i.every) - hidden)
        seconds += self.coding(device, i, size, codec)
        if isinstance(i, Send) and i.radio is not None and i.radio.relayed:
            for _ in range(2):  # the relay takes the message and sends it on
                self.busy_with(i.radio.via, size * i.radio.relayed, i.every)
        if not seconds:
            return None
        return (
            COMPUTE,
            i.lag,
            [seconds],
            0,
            (),
            ("message", i.tensor.micro, str(i.tensor), 0),
            i.every,
        )

    def carried_s(self, device: str, i: Send | Recv, size: int) -> float:
        """For how much of its work for a message's bytes a device need not stop: they come, or go, meanwhile.
        A radio message leaves in packets, and is taken as a whole."""
        times = self.plan.profile.devices.get(device)
        if times is None or not times.byte_s or self.swarm:
            return 0.0
        hops = self.hops(device, i.dest) if isinstance(i, Send) else self.hops(i.source, device)
        if not hops:
            return 0.0
        own_end = hops[0] if isinstance(i, Send) else hops[-1]
        return size * min(times.byte_s, 1 / own_end.bytes_per_s)

    def busy_with(self, device: str, size: float, every: int) -> float:
        """Counts a message that a device sends or takes; returns its seconds."""
        times = self.plan.profile.devices.get(device)
        return self.count(device, times.message(size) if times is not None else 0.0, every)

    def coding(self, device: str, i: Send | Recv, size: int, codec: CodecName) -> float:
        """Counts what a device codes or reads of a message; returns its seconds."""
        times = self.plan.profile.devices.get(device)
        if times is None or codec == "none":
            return 0.0
        if isinstance(i, Recv):
            seconds = times.decode(size, codec)
        elif i.tensor.kind == "wsum":
            seconds = 0.0  # it was coded when the sum was made
        else:
            seconds = times.encode(size, codec)
        return self.count(device, seconds, i.every)

    def rounding_line(self, device: str, i: Reduce) -> Line | None:
        """Whoever adds gradients up codes the sum once, and reads it back, so that all copies are equal."""
        times = self.plan.profile.devices.get(device)
        if times is None:
            return None
        layers = self.plan.profile.layers[i.layers[0] : i.layers[1] + 1]
        size = coded_bytes(sum(layer.param_bytes for layer in layers), i.codec)
        seconds = times.encode(size, i.codec) + times.decode(size, i.codec)
        if not self.count(device, seconds, 1):
            return None
        return (
            COMPUTE,
            i.lag,
            [seconds],
            0,
            (),
            ("message", 0, f"{i.layers[0]}-{i.layers[1]}", 0),
            1,
        )

    def count(self, device: str, seconds: float, every: int) -> float:
        """Adds a device's own seconds for messages; returns them."""
        if seconds:
            self.messages[device] = self.messages.get(device, 0.0) + seconds / every
        return seconds

    def number(self, source: str, dest: str, tensor: Tensor) -> int:
        return self.numbers.setdefault((source, dest, tensor), len(self.numbers))

    def way(self, device: str, send: Send) -> Way:
        if send.radio is not None:
            return self.radio_way(device, send, send.radio)
        ends = device, send.dest
        if ends not in self.routes:
            self.routes[ends] = self.route(*ends)
        way = []
        for name, channel, rate, latency in self.routes[ends]:
            seconds = send.bytes / rate
            self.crossed(name, send.bytes / send.every, seconds / send.every)
            way.append((channel, seconds, latency))
        if way and way[0][1] + way[0][2] <= 0:
            self.turns.instant.add(way[0][0])
        return tuple(way)

    def route(self, source: str, dest: str) -> list[tuple[str, int, float, float]]:
        route = []
        for hop in self.hops(source, dest):
            number = self.channels.setdefault(hop.channel, len(self.channels))
            route.append((hop.channel, number, hop.bytes_per_s, hop.latency_s))
        self.turns.add(source, [(number, latency) for _, number, _, latency in route])
        return route

    def hops(self, source: str, dest: str) -> tuple[Hop, ...]:
        """The route from one device to another."""
        if (source, dest) not in self.paths:
            self.paths[source, dest] = self.plan.fleet.route(source, dest)
        return self.paths[source, dest]

    def radio_way(self, device: str, send: Send, radio: Radio) -> Way:
        """The route of a best-effort message. Nothing is sent again, so the whole rate is useful, but every
        packet takes time.

        If a message is sent both directly and by a relay, its time is that of the direct packet.
        """
        self.turns.kept = True
        ways = {(device, send.dest): radio.direct}
        if radio.relayed:
            ways |= {(device, radio.via): radio.relayed, (radio.via, send.dest): radio.relayed}
        hops: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
        for (a, b), times in ways.items():
            for hop in self.plan.fleet.route(a, b) if times else ():
                size = send.bytes * times
                seconds = size / (hop.bytes_per_s / (1 - hop.loss))
                channel = self.crossed(hop.channel, size, seconds)
                hops.setdefault((a, b), []).append((channel, seconds, hop.latency_s))
        if radio.direct:
            return tuple(hops[device, send.dest])
        return (*hops[device, radio.via], *hops[radio.via, send.dest])

    def crossed(self, name: str, size: float, seconds: float) -> int:
        """Counts a message that crosses a channel in every minibatch; returns the channel's number."""
        self.bytes[name] = self.bytes.get(name, 0.0) + size
        self.occupied[name] = self.occupied.get(name, 0.0) + seconds
        return self.channels.setdefault(name, len(self.channels))


def _words(i: Instruction) -> Words:
    """How a span describes what a device computes."""
    label = f"{i.layers[0]}-{i.layers[1]}" if isinstance(i, _LAYERED) else ""
    if isinstance(i, Load):
        label = f"{i.samples[0]}-{i.samples[1]}"
    if isinstance(i, Stitch | Pool | Squares | Clip):
        label = str(i.into)
    micro = 0 if isinstance(i, Update | Reduce) else getattr(i, "micro", 0)
    return type(i).__name__.lower(), micro, label, 0


def _costly(program: Program) -> bool:
    """Whether the runtime's own time for messages or codecs is known, of a device with work or of a relay."""
    devices = program.plan.profile.devices
    names = devices if program.plan.swarm else program.code
    return messages_cost(devices[name] for name in names if name in devices)


def _sizes(program: Program) -> dict[tuple[str, str, Tensor], tuple[int, CodecName]]:
    """The bytes of every message on the wire, and its codec."""
    return {
        (device, i.dest, i.tensor): (i.bytes, i.codec)
        for device, body in program.code.items()
        for i in body
        if isinstance(i, Send) and i.dest != device
    }


_LAYERED = (Forward, Backward, Update, Reduce)
