"""Whether a program can run to its end: checked by running it without computing anything.

    validate(lower(plan))      # raises a WeftError that names the device and the instruction

The abstract run executes a few ticks of every device's loop with asynchronous sends. A send never waits, and
messages are found by name. So the order in which devices take turns does not matter: if this run ends, every
run ends.
"""

from __future__ import annotations

from collections import Counter

from weft.errors import WeftError
from weft.program.instructions import (
    DONE,
    Backward,
    Blend,
    Clip,
    Emit,
    Forward,
    Instruction,
    Keep,
    Kind,
    Load,
    Loss,
    Miss,
    Pool,
    Recv,
    Reduce,
    Send,
    Share,
    Squares,
    Stitch,
    Tensor,
    Update,
    every,
)
from weft.program.memory import check_need, memory_of
from weft.program.program import Program

Message = tuple[str, str, Tensor]  # from, to, what


def validate(program: Program) -> None:
    """Raises WeftError if a program cannot run to its end or does not fit into the devices' memory."""
    check_flow(program)
    check_need(program.plan, memory_of(program))


def check_flow(program: Program) -> None:
    """Raises WeftError if a message has no sender or no receiver, an input is missing, or devices wait in a
    circle."""
    _check_partners(program)
    _Run(program).to_the_end()


def show(instruction: Instruction) -> str:
    """An instruction in a few words, for error messages: `recv act2.0 from pi [lag 1]`."""
    lag = f" [lag {instruction.lag}]" if instruction.lag else ""
    if getattr(instruction, "late", "wait") != "wait":
        lag += f" [late: {getattr(instruction, 'late', '')}]"
    match instruction:
        case Recv():
            text = f"recv {instruction.tensor} from {instruction.source}"
        case Send():
            text = f"send {instruction.tensor} to {instruction.dest}"
        case Forward() | Backward():
            first, last = instruction.layers
            word = type(instruction).__name__.lower()
            text = f"{word} of layers {first}-{last}, micro-batch {instruction.micro}"
            if isinstance(instruction, Forward) and instruction.part:
                text += f", turn {instruction.part}"
        case Update() | Reduce():
            word = type(instruction).__name__.lower()
            text = f"{word} of layers {instruction.layers[0]}-{instruction.layers[1]}"
        case Squares() | Clip():
            spans = ", ".join(f"{first}-{last}" for first, last in instruction.segments) or "none"
            text = f"{type(instruction).__name__.lower()} of layers {spans}"
        case Share() | Blend() | Keep():
            text = f"{type(instruction).__name__.lower()} of {_group(instruction.group)}"
        case _:
            text = f"{type(instruction).__name__.lower()} of micro-batch {instruction.micro}"
    return text + lag


def _group(group: int) -> str:
    return "what all share" if group < 0 else f"class {group}"


def _check_partners(program: Program) -> None:
    sends: Counter[Message] = Counter()
    recvs: Counter[Message] = Counter()
    for device, code in program.code.items():
        for i in code:
            if i.lag < 0:
                raise WeftError(
                    f"{device}: {show(i)}: lag {i.lag} is negative; 0 or more is allowed"
                )
            if isinstance(i, Send):
                _check_peer(program, device, i, i.dest)
                sends[device, i.dest, i.tensor] += 1
            elif isinstance(i, Recv):
                _check_peer(program, device, i, i.source)
                recvs[i.source, device, i.tensor] += 1
    for source, dest, tensor in {**sends, **recvs}:
        sent, received = sends[source, dest, tensor], recvs[source, dest, tensor]
        if (sent, received) != (1, 1):
            raise WeftError(
                f"{tensor} from {source} to {dest} is sent {sent} times and received "
                f"{received} times in a minibatch; once each is allowed"
            )


def _check_peer(program: Program, device: str, instruction: Instruction, peer: str) -> None:
    if peer == device or peer not in program.code:
        others = ", ".join(name for name in program.code if name != device)
        raise WeftError(f"{device}: {show(instruction)}: allowed are the other devices ({others})")


def _carried(i: Send | Recv) -> tuple[Tensor, ...]:
    return (i.tensor,) if i.also is None else (i.tensor, i.also)


class _Run:
    """The abstract run: the tensors that each device holds of each minibatch, and the messages that have been
    sent."""

    def __init__(self, program: Program) -> None:
        self.code = program.code
        self.output = len(program.plan.profile.layers)
        # Enough for a full tick of the loop with every lag, and one more.
        self.steps = program.max_lag + 2
        if program.beat > 1:  # two rounds
            self.steps = max(self.steps, 2 * program.beat)
        self.sent: set[tuple[Message, int]] = set()
        self.held: dict[str, set[tuple[Tensor, int]]] = {device: set() for device in self.code}
        self.passes: Counter[tuple[str, type[Forward | Backward], int, int, int, int]] = Counter()
        self.backwards = {
            device: Counter(i.layers for i in code if isinstance(i, Backward))
            for device, code in self.code.items()
        }
        self.clips = {
            device: [i.into for i in code if isinstance(i, Clip)]
            for device, code in self.code.items()
        }
        self.followed = {
            device: {i.layers for i in code if isinstance(i, Reduce) and i.replace}
            for device, code in self.code.items()
        }

    def to_the_end(self) -> None:
        todo = {device: self.sequence(device) for device in self.code}
        position = dict.fromkeys(self.code, 0)
        ready = list(self.code)
        waiting: dict[tuple[Message, int], str] = {}
        while ready:
            device = ready.pop()
            sequence = todo[device]
            while position[device] < len(sequence):
                instruction, step = sequence[position[device]]
                if isinstance(instruction, Recv) and instruction.late == "wait":
                    message = (instruction.source, device, instruction.tensor), step
                    if message not in self.sent:
                        waiting[message] = device
                        break
                self.execute(device, instruction, step)
                if isinstance(instruction, Send):
                    message = (device, instruction.dest, instruction.tensor), step
                    self.sent.add(message)
                    if message in waiting:
                        ready.append(waiting.pop(message))
                position[device] += 1
        if waiting:
            raise WeftError(
                "the program comes to a standstill: "
                + "; ".join(
                    f"{dest} waits for {tensor} of minibatch {step} from {source}"
                    for (source, dest, tensor), step in sorted(waiting)
                )
            )

    def sequence(self, device: str) -> list[tuple[Instruction, int]]:
        """All that a device executes, as (instruction, minibatch)."""
        ordered = [
            (step + i.lag, place, i, step)
            for place, i in enumerate(self.code[device])
            for step in range(every(i) - 1, self.steps, every(i))
        ]
        ordered.sort(key=lambda item: item[:2])
        return [(i, step) for _, _, i, step in ordered]

    def execute(self, device: str, i: Instruction, step: int) -> None:
        """Executes one instruction: its inputs must be present, and its results are present from now on."""
        match i:
            case Load():
                self.make(device, step, Tensor("act", 0, i.micro), Tensor("target", 0, i.micro))
            case Recv():
                if i.own is not None:
                    self.need(device, step, i, i.own)
                self.make(device, step, *_carried(i))
            case Miss():
                if i.own is not None:
                    self.need(device, step, i, i.own)
                self.make(device, step, i.tensor)
            case Send(tensor=t) if t.kind == "whole":
                pass  # a device needs no input for that
            case Send(tensor=t) if t.kind in ("wgrad", "follow"):
                self.after_backwards(device, step, i, (t.at, t.last))
            case Send():
                self.need(device, step, i, *_carried(i))
            case Forward(layers=(first, last)) if i.part:
                self.need(device, step, i, Tensor("in", first, i.micro, part=i.part))
                self.make(device, step, Tensor("act", last + 1, i.micro, part=i.part))
                self.passes[device, Forward, first, last, i.micro, step] += 1
            case Stitch() | Pool():
                self.need(device, step, i, *i.reads)
                self.make(device, step, i.into)
            case Forward(layers=(first, last)):
                self.need(device, step, i, Tensor("act", first, i.micro))
                self.make(device, step, Tensor("act", last + 1, i.micro))
                self.passes[device, Forward, first, last, i.micro, step] += 1
            case Loss():
                output = Tensor("act", self.output, i.micro, part=i.part)
                self.need(device, step, i, output, Tensor("target", 0, i.micro))
                self.make(device, step, Tensor("grad", self.output, i.micro, part=i.part))
            case Backward(layers=(first, last)):
                self.need(device, step, i, Tensor("grad", last + 1, i.micro, part=i.part))
                if not self.passes[device, Forward, first, last, i.micro, step]:
                    raise WeftError(f"{device}: {show(i)} comes before the same layers' forward")
                kind: Kind = "back" if i.part else "grad"
                self.make(device, step, Tensor(kind, first, i.micro, part=i.part))
                self.passes[device, Backward, first, last, -1, step] += 1
            case Reduce():
                self.after_backwards(device, step, i, i.layers)
                self.need(device, step, i, *i.parts)
                first, last = i.layers
                ranks = range(len(self.code))  # the sum is present for all its receivers
                self.make(device, step, *(Tensor("wsum", first, r, last) for r in ranks))
            case Squares() | Clip():
                for layers in i.segments:
                    self.after_backwards(device, step, i, layers)
                if isinstance(i, Clip):
                    self.need(device, step, i, *i.parts)
                self.make(device, step, i.into)
            case Update():
                for clip in self.clips[device]:
                    self.need(device, step, i, clip)
                self.after_backwards(device, step, i, i.layers)
                self.make(device, step, DONE)
            case Share():
                self.make(device, step, i.into)
            case Blend():
                self.need(device, step, i, *i.parts)
            case Keep():
                self.need(device, step, i, i.part)
            case Emit():
                self.need(device, step, i, Tensor("act", i.at, i.micro))

    def after_backwards(
        self, device: str, step: int, i: Instruction, layers: tuple[int, int]
    ) -> None:
        """Weight gradients are complete when the backward passes of all micro-batches are done."""
        done = self.passes[device, Backward, layers[0], layers[1], -1, step]
        wanted = self.backwards[device][layers]
        if wanted == 0 and layers in self.followed[device]:
            return  # a standby gets its gradients from another device
        if not 0 < wanted == done:
            raise WeftError(
                f"{device}: {show(i)} comes after {done} of its {wanted} backwards; "
                "it must follow them all"
            )

    def make(self, device: str, step: int, *tensors: Tensor) -> None:
        self.held[device].update((tensor, step) for tensor in tensors)

    def need(self, device: str, step: int, instruction: Instruction, *tensors: Tensor) -> None:
        for tensor in tensors:
            if (tensor, step) not in self.held[device]:
                raise WeftError(
                    f"{device}: {show(instruction)} runs at minibatch {step} before its input "
                    f"{tensor} is there; a load, recv or forward must leave it earlier"
                )
