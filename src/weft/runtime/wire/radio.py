"""Best-effort messages: sent as often as the plan says, never again after a loss. Each link loses some of
them.

    transmitter = Transmitter(rules, fabric)
    transmitter.send(header, payload, Radio(slot=3, direct=1, relayed=1, via="n9"))

If the radio is emulated, the device that sends over a link draws whether the packet is lost. The random
number depends only on the seed, the minibatch, the slot and the two devices, so a simulation draws the same
losses. On real radio nothing is drawn. There are two ways to deal with time:

    slots that follow the clock    a lost packet is not sent; its receiver waits until the slot ends
    losses that are told           a lost message is sent as an empty one, so that no device waits
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from weft.draws import TRAINING, Draws, Drills, uniforms
from weft.program.instructions import Radio
from weft.runtime.wire.frames import Buffer, Header

if TYPE_CHECKING:
    from weft.runtime.wire.fabric import Fabric

MAX_STEP = 1 << 40


class RadioRules(Struct, frozen=True, omit_defaults=True):
    """What a device must know about its radio."""

    devices: tuple[str, ...]  # in the fleet's order
    slots: int  # of a minibatch
    attempts: int = 1
    seed: int = 0
    stream: int = TRAINING
    delivery: tuple[tuple[float, ...], ...] = ()  # row sends; empty: the losses are real
    slot_s: float = 0.0  # 0: losses are told
    drill: float = 0.0  # percent of the minibatches that one of the workers is left out of
    workers: tuple[int, ...] = ()  # by their places among the devices

    @property
    def told(self) -> bool:
        return self.slot_s == 0.0


class Transmitter:
    """One device's radio."""

    def __init__(self, rules: RadioRules, fabric: Fabric) -> None:
        self.rules = rules
        self._fabric = fabric
        self._counts = fabric.counts
        self._number = {name: n for n, name in enumerate(rules.devices)}
        self._delivery = np.array(rules.delivery)
        self._draws = Draws(
            rules.seed, rules.stream, rules.slots, len(rules.devices), rules.attempts
        )
        self._crossed = lru_cache(maxsize=8)(self._draw)  # relays may be a step behind or ahead
        self._drills = Drills(rules.seed, rules.drill, rules.workers)
        self._absent = lru_cache(maxsize=8)(self._drilled)

    def send(self, header: Header, payload: Buffer, radio: Radio) -> None:
        """Sends a message directly and by relays, as planned. A packet that is lost on the first link is not
        sent."""
        self._counts["messages"] += 1
        if self.rules.told:
            self._send_told(header, payload, radio)
            return
        for attempt in range(radio.direct):
            self._packet(header, payload, radio.slot, attempt, header.dest)
        for attempt in range(radio.relayed):
            self._packet(header, payload, radio.slot, attempt, radio.via)

    def relay(self, header: Header, payload: Buffer) -> None:
        """Passes a message on. The link to its receiver may lose it too."""
        rules = self.rules
        right = header.slot < rules.slots and 0 <= header.attempt < rules.attempts
        if not (right and 0 <= header.step < MAX_STEP and header.dest in self._number):
            self._counts["bad"] += 1
        elif rules.told:  # the sender has drawn that it arrives, and has counted it
            self._fabric.post(header, payload, header.dest)
        else:
            self._packet(header, payload, header.slot, header.attempt, header.dest)

    def _packet(self, header: Header, payload: Buffer, slot: int, attempt: int, to: str) -> None:
        if self._left_out(header.step, self._fabric.name, to):
            return
        self._counts["packets"] += 1
        if self._crosses(header.step, slot, attempt, self._fabric.name, to):
            packet = msgspec.structs.replace(header, slot=slot, attempt=attempt)
            self._fabric.post(packet, payload, to)
        else:
            self._counts["packets_lost"] += 1

    def _send_told(self, header: Header, payload: Buffer, radio: Radio) -> None:
        """The sender draws the losses of all packets, and sends one message: whole, or empty if all are
        lost."""
        me, dest, step, slot = self._fabric.name, header.dest, header.step, radio.slot
        direct = 0 if self._left_out(step, me, dest) else radio.direct
        relayed = 0 if self._left_out(step, me, radio.via) else radio.relayed
        self._counts["packets"] += direct + relayed
        ways = [""] if any(
            self._crosses(step, slot, a, me, dest) for a in range(direct)
        ) else []  # fmt: skip
        through = 0
        for attempt in range(relayed):
            if self._crosses(step, slot, attempt, me, radio.via):
                if self._left_out(step, radio.via, dest):
                    continue
                self._counts["packets"] += 1
                if not ways and self._crosses(step, slot, attempt, radio.via, dest):
                    ways, through = [radio.via], attempt
        if not ways:
            self._counts["messages_lost"] += 1
            empty = msgspec.structs.replace(header, lost=True, bytes=0, tensors=())
            self._fabric.post(empty, b"", dest)
        elif ways[0]:
            packet = msgspec.structs.replace(header, slot=slot, attempt=through)
            self._fabric.post(packet, payload, ways[0])
        else:
            self._fabric.post(header, payload, dest)

    def _left_out(self, step: int, *devices: str) -> bool:
        """Whether one of the devices is left out of this minibatch; everybody knows it by the seed."""
        return self._absent(step) in {self._number.get(name) for name in devices}

    def _drilled(self, step: int) -> int:
        return int(self._drills.absent(step, 1)[0])

    def _crosses(self, step: int, slot: int, attempt: int, source: str, dest: str) -> bool:
        if not self.rules.delivery:
            return True
        crossed = self._crossed(step)
        return bool(crossed[attempt, slot, self._number[source], self._number[dest]])

    def _draw(self, step: int) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = uniforms(self._draws, step, 1)[0] < self._delivery
        return found
