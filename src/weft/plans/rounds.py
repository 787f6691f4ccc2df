"""One network computed by many devices at once, round by round, through a gateway.

In a round every device computes its strip of the round's last output: rows of a feature map, or units of a
vector. The device needs strips of the round's inputs. The strips that it did not make itself come from the
gateway, which gets them from the devices that made them. Two devices, rows of a map of height 8, a round of
two 3x3 convolutions:

    r1   takes rows 0:6    gives rows 0:4          r1 made rows 0:4 itself: it fetches 4:6
    r2   takes rows 2:8    gives rows 4:8          r2 fetches 2:4

A plan's rounds hold all of this as numbers, so that they can be lowered and priced without the network.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

# rows: convolutions; each device makes some rows.  rows+data: the same, and a fully connected layer on those
# rows, whose partial sums are added.  model: each device makes some outputs of a fully connected layer.
# data: each device reads some of its inputs and makes partial sums.  hybrid: one layer in model mode, the
# next in data mode.  whole: one device computes everything.
RoundMode = Literal["whole", "rows", "rows+data", "model", "data", "hybrid"]

ROW_DIM, UNIT_DIM = 2, 1  # of a feature map (samples, channels, rows, columns) and of a vector


class Strip(Struct, frozen=True, array_like=True, gc=False):
    """Places first..last-1 of a value along the dimension in which it is cut."""

    value: str
    first: int
    last: int
    bytes: int  # of one place of one sample
    dim: int = ROW_DIM

    @property
    def size(self) -> int:
        return (self.last - self.first) * self.bytes


class Turn(Struct, frozen=True, omit_defaults=True, gc=False):
    """The work of one device in a round: a part of the round's layers, on strips of the inputs."""

    device: str
    takes: tuple[Strip, ...]
    gives: tuple[Strip, ...]
    # For every layer of the round: the share that this device computes.
    work: tuple[float, ...] = ()
    state_bytes: int = 0  # weights that it needs; several turns of a device may need the same ones
    # Units of a fully connected layer that this device computes or reads. In mode rows+data: the rows of the
    # map before it. In other modes the strips say this.
    places: tuple[int, int] = (0, 0)


class Round(Struct, frozen=True, omit_defaults=True, gc=False):
    """Layers first..last, computed by all devices at the same time.

    The gateway may do something before the devices (flatten a map into a vector) and after them (add a
    bias to a sum, pool over all rows). A device may have several turns, done in this order: first the inner
    rows, which need nothing from others, while the other rows are still being sent.
    """

    layers: tuple[int, int]
    mode: RoundMode
    turns: tuple[Turn, ...]
    before: Turn | None = None
    after: Turn | None = None
    sums: bool = False  # what the turns give are parts of a sum
    # Whole frames for the devices in turn: the place in `turns` of the one that computes each frame, again
    # from the first after the last. Empty: all turns compute every frame.
    in_turn: tuple[int, ...] = ()

    @property
    def numbered(self) -> dict[int, Turn]:
        """All turns by number: 1 the gateway's before the devices', from 2 on the devices', then the
        gateway's after them. The numbers name segments and messages; 0 would be the whole layer."""
        every = (self.before, *self.turns, self.after)
        return {number: turn for number, turn in enumerate(every, start=1) if turn is not None}

    def device_turns(self, frame: int) -> dict[int, Turn]:
        """Those that compute this frame, by number."""
        every = dict(enumerate(self.turns, start=2))
        if not self.in_turn:
            return every
        number = 2 + self.in_turn[frame % len(self.in_turn)]
        return {number: every[number]}


def frame_order(frames: int, rounds: int, in_flight: int) -> list[tuple[int, int]]:
    """(frame, round) in the order in which a device computes them. Round -1 loads the frame.

    Frames start at equal distances, so that each is in another round. With one frame in flight the next is
    loaded after the answer. With more in flight it is loaded one round earlier, so that it arrives while
    others are computed.
    """
    apart = -(-rounds // in_flight)
    early = -0.5 if in_flight > 1 else 0.0
    loads = [(f * apart + early, f, -1) for f in range(frames)]
    turns = [(float(f * apart + n), f, n) for f in range(frames) for n in range(rounds)]
    return [(f, n) for _, f, n in sorted([*loads, *turns])]


def order_in_turn(frames: int, in_flight: int) -> list[tuple[int, int]]:
    """The same where frames go to devices in turn, in one round: as many as may be in flight are loaded, then
    one for each answer."""
    order = [(f, -1) for f in range(min(in_flight, frames))]
    for f in range(frames):
        order.append((f, 0))
        if f + in_flight < frames:
            order.append((f + in_flight, -1))
    return order
