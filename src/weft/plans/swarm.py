"""The messages of a network that is spread unit by unit over devices on lossy radio.

    plan.swarm.messages          # which device sends what to which device in which slot, directly or by a
    relay plan.swarm.late              # what a receiver does if a message does not arrive

A minibatch of a network with D hidden layers has 2 D + 1 slots. Values go forward into layer b in slot b, and
gradients come back over the same boundary in slot D + b: first slot 2 D, then 2 D - 1, ..., D + 1. Nothing is
sent again. A device that waits for a message goes on at the end of the slot without it.

The plan's shards list the units (`Part.units`). The coordinator loads the samples and has the output layer.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from weft.graph.network import Blank
from weft.graph.split.lost_values import LostValues


class Message(Struct, frozen=True, array_like=True):
    """One device's values for one other device, and how often they are sent directly and by a relay."""

    slot: int
    source: str
    dest: str
    direct: int = 1
    relayed: int = 0
    via: str = ""


class Copy(Struct, frozen=True, array_like=True):
    """Units of a layer that a second device computes too, in case their owner's message gets lost."""

    device: str
    layer: int
    units: tuple[int, ...]


class Swarm(Struct, frozen=True, omit_defaults=True):
    """How values are delivered over lossy radio: all messages, their slots, and what replaces a lost one."""

    coordinator: str
    messages: tuple[Message, ...]
    # For each cut the whole value that crosses it; the last one is the output.
    values: tuple[Blank, ...]
    late: LostValues = "zero"
    # Length of a slot. 0: the receiver is told about every loss, so that no device waits for the end of a
    # slot. Raise it if computing and sending one layer takes longer.
    slot_ms: float = 0.0
    seed: int = 0  # for the emulated losses
    every: int = 20  # minibatches between two records of all weights, from which units are cloned
    # The kind of path that messages take. It is kept when another device becomes the coordinator. Empty: each
    # message has its own path.
    path: Literal["", "direct", "coordinator", "subpath"] = ""
    # Devices with a share of every layer; all their units are cloned.
    horizontal: tuple[str, ...] = ()
    prr: tuple[tuple[float, ...], ...] = ()  # measured, by the fleet's devices; row sends
    # Packets that a minibatch may take. If above 0, the network is spread again after a loss with as many
    # packets (`stitchnet+`). If 0, the lost units are cloned as in the paper.
    budget: int = 0
    # How those packets are counted: one for each receiver, or one that all hear.
    cost: Literal["unicast", "broadcast"] = "unicast"
    # In testing, whoever adds up messages multiplies what came by the weight that it expected over the
    # weight that came. For networks that learned with less loss than they are tested with.
    rescale: bool = False
    # In inference: the layer's other devices also compute this percentage of each device's units, the most
    # important ones. `copies` lists them. They are chosen when the weights are known.
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
        """The largest number of times that a message is sent in one way."""
        return max((max(m.direct, m.relayed) for m in self.messages), default=1)

    def position(self, slot: int) -> int:
        """The position of a slot in the minibatch. Gradients begin at the last layer."""
        return slot if slot <= self.depth else 3 * self.depth + 1 - slot

    @property
    def step_s(self) -> float:
        """Seconds of a minibatch; 0 if slots do not follow the clock."""
        return self.slots * self.slot_ms / 1e3
