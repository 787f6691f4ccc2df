"""How much memory a program takes on a device: the tensors that are alive between its instructions.

    peaks(program)["pi"]       # bytes at the worst moment of a steady minibatch

A tensor lives from the instruction that makes it until the last instruction that reads it. The two may belong
to different ticks of the loop. With lag 2 between them, the tensors of two more minibatches are alive at any
moment.

    phone   forward A ──────── send a ·· recv g [lag 1] ── backward A [lag 1] ── update A [lag 1]
    saved   ├─ of minibatch n ──────────────────────────────────────────────────────────────────► tick n + 1
            ── of minibatch n - 1 ───────────────────────────────────┤

A message takes memory at both ends. At its sender it counts from the send until the receiver has certainly
received it. At its receiver it counts from the moment when it may arrive: after the last message that its
sender had to wait for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

from weft.graph.optimizers.words import slots_of, works_in_place
from weft.program.instructions import (
    Backward,
    Blend,
    Clip,
    Emit,
    Forward,
    Instruction,
    Keep,
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
)
from weft.program.program import Program
from weft.program.tensor_sizes import Sizes


class Moment(NamedTuple):
    """When an instruction of minibatch n is executed: `lag` ticks after tick n, at this place of the code."""

    lag: int
    place: int


def peaks(program: Program) -> dict[str, int]:
    """Bytes at the worst moment of a steady minibatch, for every device with work."""
    sizes, messages = Sizes(program), _Messages(program)
    return {device: _Device(device, program, sizes, messages).peak() for device in program.code}


def resting(program: Program) -> dict[str, int]:
    """Bytes that a prepared device holds before it begins: weights, and room for older versions of them."""
    sizes = Sizes(program)
    return {
        device: sizes.weights(device)
        + sum(
            _older_versions(code, i) * sizes.held_weights(device, i)
            for i in code
            if isinstance(i, Update)
        )
        for device, code in program.code.items()
    }


def _older_versions(code: tuple[Instruction, ...], update: Update) -> int:
    """How many copies of its weights a segment keeps because its update comes after later forward passes."""
    forwards = [i.lag for i in code if isinstance(i, Forward) and i.layers == update.layers]
    waits = update.lag - max(forwards, default=update.lag)
    return waits + 1 if waits > 0 else 0


class _Messages:
    """The places in the code where every message is sent and received."""

    def __init__(self, program: Program) -> None:
        self.sends: dict[tuple[str, str, Tensor], tuple[Moment, Send]] = {}
        self.recvs: dict[tuple[str, str, Tensor], Moment] = {}
        self.places: dict[tuple[str, str], list[int]] = defaultdict(list)  # of receives: by, from
        for device, code in program.code.items():
            for place, i in enumerate(code):
                if isinstance(i, Send):
                    self.sends[device, i.dest, i.tensor] = Moment(i.lag, place), i
                elif isinstance(i, Recv):
                    self.recvs[i.source, device, i.tensor] = Moment(i.lag, place)
                    self.places[device, i.source].append(place)

    def after(self, device: str, place: int, source: str) -> tuple[int, int] | None:
        """A device's next receive from another: its place, in this tick (0) or the next one (1)."""
        places = self.places.get((device, source))
        if not places:
            return None
        k = bisect_right(places, place)
        return (places[k], 0) if k < len(places) else (places[0], 1)

    def before(self, device: str, place: int, source: str) -> tuple[int, int] | None:
        """A device's last receive from another: its place, in this tick (0) or the one before it (1)."""
        places = self.places.get((device, source))
        if not places:
            return None
        k = bisect_left(places, place)
        return (places[k - 1], 0) if k else (places[-1], 1)


class _Device:
    """One device's memory over one tick of its loop."""

    def __init__(self, device: str, program: Program, sizes: Sizes, messages: _Messages) -> None:
        self.device, self.program, self.sizes = device, program, sizes
        self.messages = messages
        self.code = program.code[device]
        self.always = 0  # bytes that are always held
        self.changes = [0] * (len(self.code) + 1)  # by place: bytes allocated less bytes freed
        # By place: bytes held only while an instruction is executed.
        self.brief = [0] * len(self.code)
        self.training = program.plan.mode == "train"
        self.begun: set[tuple[tuple[int, int], int]] = set()  # layers whose gradient exists already
        self.backwards = {
            (i.layers, i.micro, i.part): Moment(i.lag, place)
            for place, i in enumerate(self.code)
            if isinstance(i, Backward)
        }
        self.read = self._last_reads()

    def peak(self) -> int:
        self.keep_weights()
        for place, i in enumerate(self.code):
            self.account(i, Moment(i.lag, place))
        most = held = self.always
        for change, brief in zip(self.changes, [*self.brief, 0], strict=True):
            held += change
            most = max(most, held + brief)
        return most

    @cached_property
    def updating(self) -> int:
        """Bytes that an update works on: adam makes a root and a quotient. The order of the segments does not
        matter."""
        if works_in_place(self.program.plan.optimizer):
            return 0
        updates = (i for i in self.code if isinstance(i, Update))
        return 2 * max(self.sizes.largest_weights(self.device, i) for i in updates)

    def live(self, size: int, start: Moment, end: Moment) -> None:
        """Counts bytes that are held from one moment to another, both included."""
        if size <= 0 or end < start:
            return
        self.always += size * (end.lag - start.lag)
        self.changes[start.place] += size
        self.changes[end.place + 1] -= size

    # --- weights --------------------------------------------------------------------------------

    def keep_weights(self) -> None:
        """Weights, the optimizer's memory, older versions, and gradients from the first backward pass on."""
        self.always += self.sizes.weights(self.device)
        begins: dict[tuple[tuple[int, int], int], Moment] = {}
        for place, i in enumerate(self.code):
            if isinstance(i, Backward):
                begins.setdefault((i.layers, i.part), Moment(i.lag, place))
            # A device that stands by has no backward pass.
            elif isinstance(i, Reduce) and i.replace:
                begins.setdefault((i.layers, 0), Moment(i.lag, place))
            elif isinstance(i, Update):
                moment = Moment(i.lag, place)
                weights = self.sizes.held_weights(self.device, i)
                self.always += slots_of(self.program.plan.optimizer) * weights
                self.always += _older_versions(self.code, i) * weights
                self.live(weights, begins.get((i.layers, i.part), moment), moment)

    # --- what instructions make -----------------------------------------------------------------

    def account(self, i: Instruction, now: Moment) -> None:
        sizes = self.sizes
        match i:
            case Load():
                # The whole minibatch stays until the next one is loaded; its pieces are views.
                act = Tensor("act", 0, i.micro)
                end = max(self.read.get(act, now), Moment(now.lag + 1, now.place))
                self.live(sizes.tensor(act), now, end)
            case Recv():
                self.receive(i, now)
            case Send():
                self.send(i, now)
            case Forward():
                self.forward(i, now)
            case Loss():
                gradient = Tensor("grad", len(sizes.profile.layers), i.micro, part=i.part)
                self.made(gradient, now)
                self.brief[now.place] += sizes.tensor(gradient)
            case Backward():
                self.backward(i, now)
            case Reduce():
                if not i.replace:  # the sum, packed for its receivers
                    weights = sum(
                        layer.param_bytes
                        for layer in sizes.profile.layers[i.layers[0] : i.layers[1] + 1]
                    )
                    self.live(weights, now, Moment(now.lag + 1, now.place))
            case Update():
                self.brief[now.place] += self.updating
            case Stitch() | Share() | Pool() | Squares() | Clip():
                self.made(i.into, now)
            case Miss():
                self.made(i.tensor, now)
            case Blend():
                self.brief[now.place] += sizes.group(i.group)
            case Keep():
                self.always += sizes.tensor(i.part)
            case _:
                pass

    def made(self, t: Tensor, now: Moment) -> None:
        """Counts a tensor until its last reader. A tensor that is never read is not counted."""
        if t in self.read:
            self.live(self.sizes.tensor(t), now, self.read[t])

    def forward(self, i: Forward, now: Moment) -> None:
        output = Tensor("act", i.layers[1] + 1, i.micro, part=i.part)
        if not self.training:
            self.brief[now.place] += self.sizes.working(i)
            self.made(output, now)
            return
        # The output is among the saved activations.
        until = self.backwards.get((i.layers, i.micro, i.part), now)
        self.live(self.sizes.saved(self.device, i), now, max(until, self.read.get(output, now)))

    def backward(self, i: Backward, now: Moment) -> None:
        first = i.layers[0]
        self.brief[now.place] += self.sizes.working(i)
        # Added to a gradient that exists already.
        if (i.layers, i.part) in self.begun:
            self.brief[now.place] += self.sizes.largest_weights(self.device, i)
        self.begun.add((i.layers, i.part))
        self.made(Tensor("back" if i.part else "grad", first, i.micro, part=i.part), now)

    # --- messages -------------------------------------------------------------------------------

    def receive(self, i: Recv, now: Moment) -> None:
        """Counts a message from the moment when it may arrive. Its tensor then lives until its last reader.

        Without a codec the tensor is the message. Labels in the same message are too small to count.
        """
        sent = self.messages.sends.get((i.source, self.device, i.tensor))
        if sent is None:
            return
        arrival, last = self.may_come(i, now, sent[0]), self.read.get(i.tensor, now)
        if sent[1].codec == "none":
            self.live(sent[1].bytes, arrival, max(now, last))
        else:
            self.live(sent[1].bytes, arrival, now)
            self.live(self.sizes.tensor(i.tensor), now, last)

    def may_come(self, i: Recv, now: Moment, sent: Moment) -> Moment:
        """This device's send after which the other device is free to send the message."""
        wait = self.messages.before(i.source, sent.place, self.device)
        # The sender waits for others that wait for this device: count what the plan allows in flight.
        if wait is None:
            ahead = max(self.program.plan.ahead, 1) + sent.lag
            return min(now, Moment(now.lag - ahead, now.place))
        place, wrapped = wait
        answer = self.program.code[i.source][place]
        assert isinstance(answer, Recv)
        key = (self.device, i.source, answer.tensor)
        if key not in self.messages.sends:
            return now
        ours, _ = self.messages.sends[key]
        return min(now, Moment(sent.lag - wrapped - answer.lag + ours.lag, ours.place))

    def send(self, i: Send, now: Moment) -> None:
        """Counts a message's copy until its receiver has it. A sum was copied already when it was made."""
        if i.tensor.kind == "wsum":
            return
        reply = (i.dest, self.device, Tensor("grad", i.tensor.at, i.tensor.micro))
        if i.tensor.kind == "act" and reply in self.messages.recvs:
            self.live(i.bytes, now, max(now, self.messages.recvs[reply]))
            return
        following = self.messages.after(self.device, now.place, i.dest)
        if following is None:
            self.live(i.bytes, now, Moment(now.lag + 1, now.place))
            return
        place, wrapped = following
        self.live(i.bytes, now, Moment(now.lag + wrapped, place))

    # --- who reads what -------------------------------------------------------------------------

    def _last_reads(self) -> dict[Tensor, Moment]:
        """The last reader of every tensor. In training, the input of a forward pass is kept for the backward
        pass."""
        last: dict[Tensor, Moment] = defaultdict(lambda: Moment(-1, -1))
        for place, i in enumerate(self.code):
            now = Moment(i.lag, place)
            for t in _reads(i, len(self.sizes.profile.layers)):
                last[t] = max(last[t], now)
            if isinstance(i, Forward) and self.training:
                read = Tensor("in" if i.part else "act", i.layers[0], i.micro, part=i.part)
                last[read] = max(last[read], self.backwards.get((i.layers, i.micro, i.part), now))
        return dict(last)


def _reads(i: Instruction, layers: int) -> tuple[Tensor, ...]:
    match i:
        case Reduce(parts=parts) | Blend(parts=parts) | Clip(parts=parts):
            return parts
        case Send(tensor=t) if t.kind not in ("wgrad", "wsum", "follow", "whole"):
            return (t,)
        case Recv(own=Tensor() as t) | Miss(own=Tensor() as t):
            return (t,)
        case Stitch() | Pool():
            return i.reads
        case Keep(part=t):
            return (t,)
        case Forward():
            return (Tensor("in" if i.part else "act", i.layers[0], i.micro, part=i.part),)
        case Loss():
            return (Tensor("act", layers, i.micro, part=i.part), Tensor("target", 0, i.micro))
        case Backward():
            return (Tensor("grad", i.layers[1] + 1, i.micro, part=i.part),)
        case Emit():
            return (Tensor("act", i.at, i.micro),)
        case _:
            return ()
