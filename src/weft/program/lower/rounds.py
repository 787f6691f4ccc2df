"""From a plan with rounds to a program: strips go up to the gateway, and down to the devices that need them.

    gw   load; send strips of x to r1, r2 | recv what r1 has for others; recv from r2; stitch; send ...
    r1   recv; stitch; forward round 1; send rows to gw | forward the inner rows of round 2; recv; ...

Only missing strips are sent. A device keeps the rows that it has made, sends each row that others need to the
gateway once, and fetches no row that it has. With several frames (micro-batches) in flight, one is computed
while the strips of another are sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from weft.codecs.registry import coded_bytes
from weft.errors import InputError
from weft.plans.plan import Plan
from weft.plans.rounds import Round, Strip, Turn, frame_order, order_in_turn
from weft.program.instructions import (
    Emit,
    Extract,
    Forward,
    Instruction,
    Load,
    Recv,
    Send,
    Stitch,
    Tensor,
)
from weft.program.lower.inventory import Inventory
from weft.program.lower.schedule import micro_sizes
from weft.program.lower.sends import codec_at
from weft.program.program import Program


def lower_rounds(plan: Plan) -> Program:
    """The program of a plan that cuts feature maps or vectors into rounds."""
    check_rounds(plan)
    sizes = micro_sizes(plan.batch, plan.micro_batches)
    writer = RoundsWriter(plan)
    frames = [_Frame(writer, micro, sizes) for micro in range(len(sizes))]
    order = frame_order(len(sizes), len(plan.rounds), plan.in_flight)
    if plan.rounds[0].in_turn:
        order = order_in_turn(len(sizes), plan.in_flight)
    for micro, number in order:
        if number < 0:
            frames[micro].load()
        else:
            frames[micro].round(number)
    return Program(plan=plan, code={d: tuple(writer.code[d]) for d in plan.devices})


def check_rounds(plan: Plan) -> None:
    """Raises InputError if the rounds do not tile the layers, or if the plan is not for inference."""
    if plan.mode != "infer":
        raise InputError("plan: rounds are for inference; a training plan cannot have them")
    expected = 0
    for r in plan.rounds:
        if r.layers[0] != expected or r.layers[1] < r.layers[0] or not r.turns:
            raise InputError(
                f"plan: rounds: one has layers {list(r.layers)} and {len(r.turns)} turns; "
                f"the next must begin at layer {expected} and have at least one turn"
            )
        for turn in r.turns:
            if turn.device not in plan.profile.devices:
                raise InputError(f"plan: rounds: the profile has no device {turn.device!r}")
        if r.in_turn and (
            len(plan.rounds) > 1 or not 0 <= min(r.in_turn) <= max(r.in_turn) < len(r.turns)
        ):
            raise InputError(
                f"plan: rounds: frames in turn {list(r.in_turn)} for {len(r.turns)} turns in one of "
                f"{len(plan.rounds)} rounds; each must be the place of a turn, in a plan of one round"
            )
        expected = r.layers[1] + 1
    if expected != len(plan.profile.layers):
        raise InputError(
            f"plan: rounds hold layers up to {expected - 1}; "
            f"the profile of {plan.model} has layers 0 to {len(plan.profile.layers) - 1}"
        )


class RoundsWriter:
    """Writes the code of all devices, and holds what is the same for every frame."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.gateway = plan.source
        self.code: dict[str, list[Instruction]] = defaultdict(list)
        self.layers = len(plan.profile.layers)
        self.rank = {device: rank for rank, device in enumerate(plan.devices, start=1)}

    def add(self, device: str, *instructions: Instruction) -> None:
        self.code[device].extend(instructions)


class _Frame:
    """One micro-batch in the rounds: which device holds which strips of it."""

    def __init__(self, writer: RoundsWriter, micro: int, sizes: list[int]) -> None:
        self.writer = writer
        self.plan = writer.plan
        self.micro = micro
        self.samples = sizes[micro]
        self.first = sum(sizes[:micro])
        self.inventory = Inventory()
        self.sums: list[Tensor] = []  # partial sums at the gateway, until it adds them

    def load(self) -> None:
        writer, first = self.writer, self.plan.rounds[0]
        writer.add(writer.gateway, Load(self.micro, (self.first, self.first + self.samples)))
        frame = Tensor("act", 0, self.micro)
        every = first.numbered.values()
        made = {strip.value for turn in every for strip in turn.gives}
        read = [strip for turn in every for strip in turn.takes if strip.value not in made]
        for strip in _whole(read):
            self.inventory.add(writer.gateway, frame, strip)
        self.begin(first, [])

    def round(self, number: int) -> None:
        """The turns of a round. Then its strips are sent to the devices of the next round, or are the
        answer."""
        rounds = self.plan.rounds
        done, following = rounds[number], rounds[number + 1] if number + 1 < len(rounds) else None
        for turn_number, turn in done.device_turns(self.micro).items():
            self.turn(done, turn, turn_number)
        at = following.layers[0] if following else self.writer.layers
        arriving = self.gather_sums(done, at) if done.sums else self.gather(done, following, at)
        if done.after or following is None:  # the gateway needs all strips
            self.writer.add(self.writer.gateway, *arriving)
            arriving = []
        if done.after is not None:
            self.gateway_turn(done, done.after, len(done.turns) + 2)
        if following is not None:
            self.begin(following, arriving)
        else:
            self.answer(done)

    def begin(self, following: Round, arriving: list[Recv]) -> None:
        if following.before is not None:
            self.writer.add(self.writer.gateway, *arriving)
            arriving = []
            self.gateway_turn(following, following.before, 1)
        self.hand_out(following, arriving)

    # --- up -------------------------------------------------------------------------------------

    def gather(self, done: Round, following: Round | None, at: int) -> list[Recv]:
        """Every device sends the strips that the gateway or another device needs to the gateway."""
        gateway = self.writer.gateway
        wanted: list[tuple[str, Strip]] = []
        for turn in (done.after, following.before if following else None):
            wanted += [(gateway, strip) for strip in turn.takes] if turn else []
        if following is None and done.after is None:
            wanted += [(gateway, strip) for strip in _whole(_gives(done))]
        for turn in following.device_turns(self.micro).values() if following else ():
            wanted += [(turn.device, strip) for strip in turn.takes]
        missing = [gap for device, strip in wanted for gap in self.inventory.missing(device, strip)]
        arriving: list[Recv] = []
        for device in self.plan.devices:
            strips = self.inventory.union(device, missing, beside=gateway)
            if device == gateway or not strips:
                continue
            tensor = Tensor("up", at, self.micro, part=self.writer.rank[device])
            pieces = [piece for strip in strips for piece in self.inventory.pieces(device, strip)]
            self.give(device, tensor, gateway, strips, pieces)
            arriving.append(Recv(tensor, device))
        return arriving

    def gather_sums(self, done: Round, at: int) -> list[Recv]:
        """Each device adds its own partial sums and sends the result to the gateway."""
        (strip,) = done.turns[0].gives
        parts: dict[str, list[Tensor]] = defaultdict(list)
        for number, turn in done.device_turns(self.micro).items():
            made = Tensor("act", done.layers[1] + 1, self.micro, part=number)
            parts[turn.device].append(made)
        arriving: list[Recv] = []
        for device, tensors in parts.items():
            tensor = Tensor("up", at, self.micro, part=self.writer.rank[device])
            self.sums.append(tensor)
            self.writer.add(device, Stitch(tensor, _all_of(tensors, strip), add=True))
            if device != self.writer.gateway:
                self.writer.add(device, self.send(tensor, self.writer.gateway, [strip]))
                arriving.append(Recv(tensor, device))
        return arriving

    # --- down -----------------------------------------------------------------------------------

    def hand_out(self, following: Round, arriving: list[Recv]) -> None:
        """The gateway sends every turn the strips that its device lacks, as soon as they have arrived."""
        gateway = self.writer.gateway
        arrived = {recv.tensor for recv in arriving}
        for number, turn in following.device_turns(self.micro).items():
            strips = [
                gap for strip in turn.takes for gap in self.inventory.missing(turn.device, strip)
            ]
            if not strips or turn.device == gateway:
                continue
            tensor = Tensor("down", following.layers[0], self.micro, part=number)
            pieces = [piece for strip in strips for piece in self.inventory.pieces(gateway, strip)]
            while arrived & {piece.tensor for piece in pieces}:
                recv = arriving.pop(0)
                arrived.discard(recv.tensor)
                self.writer.add(gateway, recv)
            self.give(gateway, tensor, turn.device, strips, pieces)
        self.writer.add(gateway, *arriving)

    def give(
        self, device: str, tensor: Tensor, dest: str, strips: list[Strip], pieces: list[Extract]
    ) -> None:
        self.writer.add(device, Stitch(tensor, tuple(pieces)), self.send(tensor, dest, strips))
        self.inventory.add_all(dest, tensor, strips)

    # --- computing ------------------------------------------------------------------------------

    def turn(self, r: Round, turn: Turn, number: int) -> None:
        down = Tensor("down", r.layers[0], self.micro, part=number)
        if self.inventory.has(turn.device, down):
            self.writer.add(turn.device, Recv(down, self.writer.gateway))
        self.read(r, turn, number)
        self.compute(r, turn, number, () if r.sums else turn.gives)

    def gateway_turn(self, r: Round, turn: Turn, number: int) -> None:
        if turn is r.after and r.sums:
            (strip,) = r.turns[0].gives
            total = Tensor("in", r.layers[0], self.micro, part=number)
            stitch = Stitch(total, _all_of(self.sums, strip), add=True)
            self.writer.add(turn.device, stitch)
            self.sums = []
        else:
            self.read(r, turn, number)
        self.compute(r, turn, number, turn.gives)

    def read(self, r: Round, turn: Turn, number: int) -> None:
        pieces = [p for strip in turn.takes for p in self.inventory.pieces(turn.device, strip)]
        into = Tensor("in", r.layers[0], self.micro, part=number)
        self.writer.add(turn.device, Stitch(into, tuple(pieces)))

    def compute(self, r: Round, turn: Turn, number: int, gives: tuple[Strip, ...]) -> None:
        first, last = r.layers
        work = turn.work or (0.0,) * (last - first + 1)
        self.writer.add(
            turn.device, Forward(r.layers, self.micro, self.samples, part=number, work=work)
        )
        output = Tensor("act", last + 1, self.micro, part=number)
        for strip in gives:
            self.inventory.add(turn.device, output, strip)

    def answer(self, done: Round) -> None:
        """The gateway has the network's whole output and gives it to the user."""
        gateway, micro = self.writer.gateway, self.micro
        gives = done.after.gives if done.after is not None else _whole(_gives(done))
        pieces = [piece for strip in gives for piece in self.inventory.pieces(gateway, strip)]
        output = Tensor("act", self.writer.layers, micro)
        self.writer.add(gateway, Stitch(output, tuple(pieces)), Emit(self.writer.layers, micro))

    def send(self, tensor: Tensor, dest: str, strips: list[Strip]) -> Send:
        """Sends a tensor. Each of its values is coded by itself, with its own scale."""
        codec = codec_at(self.plan, tensor.at)
        sizes: dict[str, int] = defaultdict(int)
        for strip in strips:
            sizes[strip.value] += strip.size * self.samples
        return Send(tensor, dest, sum(coded_bytes(raw, codec) for raw in sizes.values()), codec)


def _gives(r: Round) -> list[Strip]:
    return [strip for turn in r.turns for strip in turn.gives]


def _whole(strips: Iterable[Strip]) -> list[Strip]:
    """One strip for each value, from the first place to the last that any strip has."""
    by_value: dict[str, Strip] = {}
    for s in strips:
        old = by_value.get(s.value, s)
        first, last = min(old.first, s.first), max(old.last, s.last)
        by_value[s.value] = Strip(s.value, first, last, s.bytes, s.dim)
    return list(by_value.values())


def _all_of(tensors: list[Tensor], strip: Strip) -> tuple[Extract, ...]:
    size = strip.last - strip.first
    return tuple(Extract(tensor, strip.value, strip.dim, 0, size) for tensor in tensors)
