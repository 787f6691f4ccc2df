"""A network spread unit by unit over devices whose messages get lost: what a plan says of its messages.

    plan.swarm.messages          # who sends what to whom in which slot, straight or by a relay
    plan.swarm.late              # what a receiver does about a message that did not come

A minibatch of a network with D hidden layers has 2 D + 1 slots: forward over the boundary into layer b
in slot b, back over it in slot D + b; the gradients go back in slots 2 D, 2 D - 1, ..., D + 1. Nothing
is sent again; whoever waits for a message goes on at the end of its slot with what it has.

The units themselves are in the plan's shards (`Part.units`); the coordinator loads the samples and has the
output layer.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from weft.graph.network import Blank
from weft.graph.split.lost_values import LostValues


class Message(Struct, frozen=True, array_like=True):
    """One device's values for one other device. How often it is sent each way is part of the plan."""

    slot: int
    source: str
    dest: str
    direct: int = 1
    relayed: int = 0
    via: str = ""


class Copy(Struct, frozen=True, array_like=True):
    """Units of a layer that a device computes as well, for readers that do not hear their owner."""

    device: str
    layer: int
    units: tuple[int, ...]


class Swarm(Struct, frozen=True, omit_defaults=True):
    """How values are delivered over lossy radio: all messages, their slots, and what replaces a lost one."""

    coordinator: str
    messages: tuple[Message, ...]
    values: tuple[Blank, ...]  # by cut: what crosses it, whole; the last one is the output
    late: LostValues = "zero"
    # 0: every loss is told to the receiver, so that nobody waits for the end of a slot; else the
    # length of a slot. Raise it where computing and sending one layer takes longer.
    slot_ms: float = 0.0
    seed: int = 0  # of the losses that are emulated
    every: int = 20  # minibatches between two records of all weights, from which units are cloned
    # The kind of way that messages go, kept when another device becomes the coordinator; empty: each message
    # has a way of its own.
    path: Literal["", "direct", "coordinator", "subpath"] = ""
    horizontal: tuple[str, ...] = ()  # devices with a share of every layer: cloned whole
    prr: tuple[tuple[float, ...], ...] = ()  # measured, by the fleet's devices; row sends
    # Packets that a minibatch may take; where above 0, what is left after a loss is spread anew with as
    # many (`stitchnet+`), else the lost units are cloned as the paper does.
    budget: int = 0
    # How those packets are counted: one for each receiver, or one that all hear.
    cost: Literal["unicast", "broadcast"] = "unicast"
    # In testing, whoever adds up messages multiplies what came by the weight that it expected over the
    # weight that came. For networks that learned with less loss than they are tested with.
    rescale: bool = False
    # In answering: so many percent of each device's units of a layer, the most important, are computed by
    # the layer's other devices too. `copies` says which; they are chosen when the weights are known.
    copied: int = 0
    # In training: in so many of a hundred minibatches one worker, drawn by the seed, neither sends nor hears.
    # The network then learns to do without any one of them.
    drill: int = 0
    copies: tuple[Copy, ...] = ()

    @property
    def depth(self) -> int:
        """How many hidden layers there are."""
        return len(self.values) - 2

    @property
    def slots(self) -> int:
        return 2 * self.depth + 1

    @property
    def attempts(self) -> int:
        """The most often that anything is sent one way."""
        return max((max(m.direct, m.relayed) for m in self.messages), default=1)

    def position(self, slot: int) -> int:
        """When in the minibatch a slot comes: gradients begin at the last layer."""
        return slot if slot <= self.depth else 3 * self.depth + 1 - slot

    @property
    def step_s(self) -> float:
        """Seconds that a minibatch has; 0 where nobody looks at the clock."""
        return self.slots * self.slot_ms / 1e3
