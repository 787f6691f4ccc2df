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
from weft.program.cost import compute_seconds
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

COMPUTE, RECV, SEND, MARK, SLOT, PASS = range(6)  # PASS: takes no time and does not wait

# (channel, seconds that the message occupies it, latency) for every hop of a message's route
Way = tuple[tuple[int, float, float], ...]

# How a span describes an instruction: (what, micro-batch, label, bytes)
Words = tuple[str, int, str, int]

# (word, lag, seconds of a COMPUTE, number of a RECV's or SEND's message, route of a SEND, description, k if
# executed at each k-th minibatch). MARK follows a device's last instruction of a minibatch. SLOT waits until
# so many seconds of its minibatch are over: a message that may be late has arrived by then, or the device
# goes on without it.
Line = tuple[int, int, float, int, Way, Words, int]
_NO_WORDS: Words = ("", 0, "", 0)
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
    )


class _Compiler:
    def __init__(self, program: Program, words: bool) -> None:
        self.plan = program.plan
        self.words = words
        self.known: dict[tuple[str, type[Instruction], tuple[int, int], int], float] = {}
        self.routes: dict[tuple[str, str], tuple[Hop, ...]] = {}
        self.swarm = program.plan.swarm
        self.channels: dict[str, int] = {}
        self.numbers: dict[tuple[str, str, Tensor], int] = {}
        self.seconds = dict.fromkeys(program.code, 0.0)
        self.bytes: dict[str, float] = {}
        self.occupied: dict[str, float] = {}
        self.messages: dict[str, float] = {}
        self.sizes = _sizes(program) if _costly(program) else {}

    def device(self, device: str, body: tuple[Instruction, ...], lag: int) -> list[Line]:
        final = max((n for n, i in enumerate(body) if i.lag == lag), default=-1)
        lines = []
        for n, instruction in enumerate(body):
            line = self.line(device, instruction)
            cost = self.message_line(device, instruction) if self.sizes else None
            if cost is None:
                if self.words or line[0] != COMPUTE or line[2]:  # else nothing would be seen of it
                    lines.append(line)
            elif isinstance(instruction, Send):
                lines += [cost, line]
            else:
                lines += [line, cost]
            if n == final:
                lines.append((MARK, lag, 0.0, 0, (), ("", 0, "", 0), 1))
        return lines

    def line(self, device: str, i: Instruction) -> Line:
        if isinstance(i, Recv) and i.late != "wait" and self.swarm and self.swarm.slot_ms:
            end = (i.slot + 1) * self.swarm.slot_ms / 1e3
            return SLOT, i.lag, end, 0, (), ("wait", i.tensor.micro, str(i.tensor), 0), i.every
        if isinstance(i, Recv):
            number = self.number(i.source, device, i.tensor)
            words = ("wait", i.tensor.micro, str(i.tensor), 0) if self.words else _NO_WORDS
            return PASS if i.late == "newest" else RECV, i.lag, 0.0, number, (), words, i.every
        if isinstance(i, Send):
            number = self.number(device, i.dest, i.tensor)
            words = _NO_WORDS
            if self.words:
                words = ("transfer", i.tensor.micro, str(i.tensor), i.bytes)
            return SEND, i.lag, 0.0, number, self.way(device, i), words, i.every
        seconds, beat = self.compute(device, i), every(i)
        self.seconds[device] += seconds / beat
        return COMPUTE, i.lag, seconds, 0, (), _words(i) if self.words else _NO_WORDS, beat

    def compute(self, device: str, i: Instruction) -> float:
        """Seconds of an instruction. The pieces of a minibatch mostly have the same size, and then the same
        seconds."""
        if not isinstance(i, _PASSES) or i.work:
            return compute_seconds(self.plan.profile, device, i)
        key = device, type(i), i.layers, i.samples
        if key not in self.known:
            self.known[key] = compute_seconds(self.plan.profile, device, i)
        return self.known[key]

    def message_line(self, device: str, i: Instruction) -> Line | None:
        """What a message, and its codec, cost the device that sends or takes it."""
        if isinstance(i, Reduce) and i.codec != "none":
            return self.rounding_line(device, i)
        if not isinstance(i, Send | Recv) or i.late == "newest":
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
            seconds,
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
        return COMPUTE, i.lag, seconds, 0, (), ("message", 0, f"{i.layers[0]}-{i.layers[1]}", 0), 1

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
        way = []
        for hop in self.hops(device, send.dest):
            seconds = send.bytes / hop.bytes_per_s
            channel = self.crossed(hop.channel, send.bytes / send.every, seconds / send.every)
            way.append((channel, seconds, hop.latency_s))
        return tuple(way)

    def hops(self, source: str, dest: str) -> tuple[Hop, ...]:
        """The route from one device to another."""
        if (source, dest) not in self.routes:
            self.routes[source, dest] = self.plan.fleet.route(source, dest)
        return self.routes[source, dest]

    def radio_way(self, device: str, send: Send, radio: Radio) -> Way:
        """The route of a best-effort message. Nothing is sent again, so the whole rate is useful, but every
        packet takes time.

        If a message is sent both directly and by a relay, its time is that of the direct packet.
        """
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
