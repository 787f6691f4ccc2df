"""From a plan that spreads units to a program: every layer boundary is a slot of best-effort messages.

Worker w2 owns units of layers 1 and 2, w1 of layer 1; c is the coordinator:

    c    load; send x to w1, w2 | recv h2 from w2; stitch; forward output; loss; backward; send shares of g
    w1   recv x; forward its units of 1; send h1 to w2    | recv share; add; backward 1; update 1
    w2   recv x; forward its units of 1 | recv h1 from w1; stitch with its own; forward 2; send h2 to c | ...

A message that does not arrive in its slot is replaced (`Recv.late`) by zeros or by the receiver's own units
of that layer. A lost share of a gradient is missing from the sum. With late = none every device tells the
coordinator whether it lost anything, and either all devices update or none.

A device's number is its place in the fleet plus one. It is in the names of its turns and of its messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from weft.codecs.registry import coded_bytes
from weft.dtypes import DTYPE_BYTES
from weft.graph.network import Blank
from weft.plans.delivery import believed
from weft.plans.plan import Plan
from weft.plans.swarm import Swarm
from weft.program.instructions import (
    Backward,
    Emit,
    Extract,
    Forward,
    Instruction,
    Late,
    Load,
    Loss,
    Miss,
    Radio,
    Recv,
    Send,
    Spare,
    Stitch,
    Tensor,
    Update,
)
from weft.program.lower.sends import codec_at
from weft.program.lower.swarm_slots import check_slots
from weft.program.lower.swarm_units import check_swarm, held_of, holders_of, read_by
from weft.program.program import Program

UNIT_DIM = 1


def lower_swarm(plan: Plan) -> Program:
    """The program of a plan that spreads units over lossy radio."""
    writer = SwarmWriter(check_swarm(plan), plan)
    for layer in range(writer.depth + 1):
        writer.forward(layer)
    if plan.mode == "train":
        for layer in reversed(range(writer.depth + 1)):
            writer.backward(layer)
        writer.updates()
    else:
        writer.answer()
    check_slots(plan, writer.code)
    return Program(plan=plan, code={d: tuple(writer.code[d]) for d in plan.devices})


class SwarmWriter:
    """Writes the instructions of all devices, layer by layer."""

    def __init__(self, swarm: Swarm, plan: Plan) -> None:
        self.plan, self.swarm = plan, swarm
        self.depth = swarm.depth
        self.code: dict[str, list[Instruction]] = defaultdict(list)
        self.number = {name: n for n, name in enumerate(plan.fleet.names, start=1)}
        self.holders, self.held = holders_of(plan), held_of(plan)
        self.sent = {(m.slot, m.source, m.dest): m for m in swarm.messages}
        self.read = [list(read_by(plan, layer)) for layer in range(self.depth + 1)]
        self.computed: list[tuple[str, int]] = []  # turns that received a gradient
        rescaled = swarm.rescale and plan.mode == "infer"
        self.expected = believed(plan) if rescaled else None

    def add(self, device: str, *instructions: Instruction) -> None:
        self.code[device].extend(instructions)

    # --- forward --------------------------------------------------------------------------------

    def forward(self, layer: int) -> None:
        """One slot: all messages are sent before any device waits for one. Then each device computes its
        turn."""
        c = self.swarm.coordinator
        if layer == 0:
            self.add(c, Load(0, (0, self.plan.batch)))
        pairs = [(s, d) for d in self.holders[layer] for s in self.read[layer] if s != d]
        for word in (self.send, self.recv):
            for source, dest in pairs:
                word(layer, source, dest, self.made(layer, source), self.blank(layer, source))
        for device, units in self.held[layer].items():
            self.turn(layer, device, units)

    def made(self, cut: int, device: str) -> Tensor:
        """A device's values at a cut. All samples belong to the coordinator."""
        return Tensor("act", cut, part=self.number[device] if cut else 0)

    def blank(self, cut: int, owner: str) -> Blank:
        whole = self.swarm.values[cut]
        if cut == 0:
            return whole
        return self.strip(cut, len(self.held[cut - 1][owner]))

    def strip(self, cut: int, units: int) -> Blank:
        whole = self.swarm.values[cut]
        return Blank(whole.value, (whole.shape[0], units, *whole.shape[2:]), whole.dtype)

    def recv(self, slot: int, source: str, dest: str, tensor: Tensor, blank: Blank) -> None:
        """Waits for a message until its slot ends. If the plan never sends the message, it does not wait."""
        late, stand_in = self.lateness(slot, dest)
        if (slot, source, dest) not in self.sent:
            self.add(dest, Miss(tensor, late, (blank,), self.plan.batch, stand_in))
            return
        self.add(dest, Recv(
            tensor, source, late=late, slot=self.swarm.position(slot), blanks=(blank,),
            samples=self.plan.batch, own=stand_in,
        ))  # fmt: skip

    def lateness(self, slot: int, dest: str) -> tuple[Late, Tensor | None]:
        if self.swarm.late == "none":
            return "skip", None
        if self.swarm.late == "own" and 0 < slot <= self.depth and dest in self.holders[slot - 1]:
            return "own", self.made(slot, dest)
        return "zero", None

    def send(self, slot: int, source: str, dest: str, tensor: Tensor, blank: Blank) -> None:
        """Sends a message as often as the plan says. It may get lost."""
        way = self.sent.get((slot, source, dest))
        if way is None:
            return
        size = self.plan.batch * DTYPE_BYTES.get(blank.dtype, 4)
        for places in blank.shape[1:]:
            size *= places
        codec = codec_at(self.plan, tensor.at)
        radio = Radio(way.slot, way.direct, way.relayed, way.via)
        self.add(source, Send(tensor, dest, coded_bytes(size, codec), codec, radio=radio))

    def turn(self, layer: int, device: str, units: tuple[int, ...]) -> None:
        number = self.number[device]
        pieces = []
        for source in self.read[layer]:
            last = len(self.holders[layer - 1][source]) if layer else self.blank(0, source).shape[1]
            value = self.swarm.values[layer].value
            pieces.append(Extract(self.made(layer, source), value, UNIT_DIM, 0, last))
        shares, expected = self.levels(layer, device)
        joined = Tensor("in", layer, part=number)
        self.add(
            device,
            Stitch(
                joined,
                tuple(pieces),
                shares=shares,
                expected=expected,
                spares=tuple(self.spares(layer, device)) if layer else (),
            ),
            Forward((layer, layer), 0, self.plan.batch, part=number, work=self.work(layer, units)),
        )

    def spares(self, layer: int, device: str) -> Iterator[Spare]:
        """For each owner whose message may get lost: the devices with copies of its units, in the fleet's
        order."""
        value, begin = self.swarm.values[layer].value, 0
        for owner in self.read[layer]:
            units = self.holders[layer - 1][owner]
            for other, held in self.held[layer - 1].items():
                width = len(self.holders[layer - 1][other])
                place = {unit: width + k for k, unit in enumerate(held[width:])}
                common = [unit for unit in units if unit in place]
                if common and owner != device:
                    yield Spare(
                        self.made(layer, owner), self.made(layer, other), value, UNIT_DIM,
                        tuple(place[unit] for unit in common),
                        tuple(begin + units.index(unit) for unit in common),
                    )  # fmt: skip
            begin += len(units)

    def levels(self, layer: int, device: str) -> tuple[tuple[float, ...], float]:
        """(for each message that a turn reads, its share of the layer before; the total share that is
        expected to arrive)."""
        if self.expected is None:
            return (), 0.0
        width = self.swarm.values[layer].shape[1]
        units = [len(self.holders[layer - 1][s]) if layer else width for s in self.read[layer]]
        shares = tuple(count / width for count in units)
        chances = [
            self.expected[layer, self.number[source] - 1, self.number[device] - 1]
            for source in self.read[layer]
        ]
        return shares, float(sum(s * c for s, c in zip(shares, chances, strict=True)))

    def work(self, layer: int, units: tuple[int, ...]) -> tuple[float, ...]:
        return (len(units) / self.swarm.values[layer + 1].shape[1],)

    # --- backward -------------------------------------------------------------------------------

    def backward(self, layer: int) -> None:
        """Each turn receives the shares of its gradient, computes its backward pass, and sends shares on."""
        shares = {d: self.shares(layer + 1, d) for d in self.holders[layer]}
        for word in (self.send, self.recv):
            for device, sources in shares.items():
                for source in sources:
                    if source != device:
                        share = self.share(layer + 1, source, device)
                        slot = self.depth + layer + 1
                        word(slot, source, device, share, self.blank(layer + 1, device))
        for device, units in self.holders[layer].items():
            if layer == self.depth:
                self.add(device, Loss(0, self.plan.batch, part=self.number[device]))
            elif shares[device]:
                self.add_up(layer + 1, device, shares[device])
            else:
                continue  # it receives no gradient, so its units do not change
            self.computed.append((device, layer))
            part, work = self.number[device], self.work(layer, units)
            self.add(device, Backward((layer, layer), 0, self.plan.batch, part=part, work=work))
            if layer:
                self.hand_back(layer, device)

    def hand_back(self, layer: int, device: str) -> None:
        """Cuts the gradient of a turn's input into one share for each sender of that input."""
        back = Tensor("back", layer, part=self.number[device])
        value, first = self.swarm.values[layer].value, 0
        for source, units in self.holders[layer - 1].items():
            last = first + len(units)
            if source == device or (self.depth + layer, device, source) in self.sent:
                piece = Extract(back, value, UNIT_DIM, first, last)
                self.add(device, Stitch(self.share(layer, device, source), (piece,)))
            first = last

    def share(self, cut: int, source: str, dest: str) -> Tensor:
        """The name of one device's share of the gradient of another device's values."""
        pair = self.number[source] * (len(self.number) + 1) + self.number[dest]
        return Tensor("share", cut, part=pair)

    def shares(self, cut: int, device: str) -> list[str]:
        """The devices that compute a share of the gradient of a device's values at a cut, and send it."""
        slot = self.depth + cut
        return [
            source
            for source, layer in self.computed
            if layer == cut and (source == device or (slot, source, device) in self.sent)
        ]

    def add_up(self, cut: int, device: str, sources: list[str]) -> None:
        blank = self.blank(cut, device)
        pieces = (
            Extract(self.share(cut, source, device), blank.value, UNIT_DIM, 0, blank.shape[1])
            for source in sources
        )
        whole = Tensor("grad", cut, part=self.number[device])
        self.add(device, Stitch(whole, tuple(pieces), add=True))

    # --- the end of a minibatch -----------------------------------------------------------------

    def updates(self) -> None:
        if self.swarm.late == "none":
            self.agree()
        for device, layer in self.computed:
            units = self.holders[layer][device]
            work = self.work(layer, units)
            self.add(device, Update((layer, layer), part=self.number[device], work=work))

    def agree(self) -> None:
        """All devices learn, by reliable messages, whether any device has lost a message."""
        c = self.swarm.coordinator
        workers = [d for d in self.plan.devices if d != c]
        asked = {d: Tensor("whole", 0, part=self.number[d]) for d in workers}
        for device, word in asked.items():
            self.add(device, Send(word, c, bytes=0))
        self.add(c, *(Recv(word, device) for device, word in asked.items()))
        for device, word in asked.items():
            verdict = msgspec.structs.replace(word, at=1)
            self.add(c, Send(verdict, device, bytes=0))
            self.add(device, Recv(verdict, c))

    def answer(self) -> None:
        c, last = self.swarm.coordinator, self.depth + 1
        whole = self.swarm.values[last]
        piece = Extract(self.made(last, c), whole.value, UNIT_DIM, 0, whole.shape[1])
        self.add(c, Stitch(Tensor("act", last), (piece,)), Emit(last, 0))
