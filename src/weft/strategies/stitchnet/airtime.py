"""How often a message can be sent in a given time on the swarm's links.

    links = AirTime.of(fleet, values, batch)
    SlotTime(links, 0.5, 0.2).times(spread, asked, ways, 60)  # of the input in 0.5 s, of others in 0.2 s

A packet is one message, however long it is. A packet of the input is often a hundred times longer than one of
a few neurons, and takes a hundred times as long. Where a minibatch may not take longer than another plan's,
long messages are therefore sent once and short ones several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from weft.codecs.registry import CodecName, coded_bytes
from weft.fleet.fleet import Fleet
from weft.fleet.radio import Matrix
from weft.graph.network import Blank
from weft.strategies.stitchnet.mapping import Spread

FLOAT = 4  # bytes of a number
FOREVER = 1e9  # seconds for a byte where there is no link


@dataclass(frozen=True)
class Ways:
    """For each pair of devices: whether a packet is relayed, the relay, and the chance that it arrives."""

    via: NDArray[np.int64]
    by_relay: NDArray[np.bool_]
    once: Matrix
    price: NDArray[np.int64]  # packets: 1 direct, 2 relayed


@dataclass(frozen=True)
class AirTime:
    """Seconds for a byte between two devices, and the bytes of a batch by boundary between layers."""

    per_byte: Matrix  # n x n, the row sends
    whole: float  # bytes of the input
    unit: NDArray[np.float64]  # bytes of one unit of each hidden layer

    @classmethod
    def of(
        cls,
        fleet: Fleet,
        values: Sequence[Blank],
        batch: int,
        codec: CodecName = "none",
        input_codec: CodecName = "none",
    ) -> AirTime:
        """From a fleet and the values that cross the cuts (input first, output last)."""
        index = {name: i for i, name in enumerate(fleet.names)}
        per_byte: Matrix = np.full((len(index), len(index)), FOREVER)
        for hop in fleet.hops():
            # A swarm's packet is not sent again when it is lost, so the link's own rate counts.
            spent = (1 - hop.loss) / hop.bytes_per_s
            pair = index[hop.source], index[hop.dest]
            per_byte[pair] = min(per_byte[pair], spent)
        whole, *sizes = [
            coded_bytes(FLOAT * batch * prod(value.shape[1:]), name)
            for value, name in zip(values, [input_codec, *[codec] * len(values)], strict=False)
        ]
        hidden = zip(sizes, values[1:-1], strict=False)
        return cls(per_byte, whole, np.array([size / value.shape[1] for size, value in hidden]))

    def seconds(self, spread: Spread, asked: NDArray[np.int64], ways: Ways) -> Matrix:
        """Seconds of one packet of each message (rows of `asked`: slot, sender, receiver).

        Forward, a message has the sender's units of layer b. Backward, it has the gradients of the
        receiver's.
        """
        slot, s, d = asked.T
        depth, counts = len(spread.owners), spread.counts()
        layer = np.where(slot <= depth, slot, slot - depth) - 1
        owner = np.where(slot <= depth, s, d)
        hidden = np.maximum(layer, 0)
        size = np.where(layer < 0, self.whole, self.unit[hidden] * counts[owner, hidden])
        via = ways.via[s, d]
        relayed = self.per_byte[s, via] + self.per_byte[via, d]
        seconds: Matrix = size * np.where(ways.by_relay[s, d], relayed, self.per_byte[s, d])
        return seconds


@dataclass(frozen=True)
class SlotTime:
    """The time that the packets of one message may take."""

    links: AirTime
    input_s: float
    other_s: float

    def times(
        self, spread: Spread, asked: NDArray[np.int64], ways: Ways, most: int
    ) -> NDArray[np.int64]:
        """How often each message may be sent: once at least, `most` times at most."""
        each = np.maximum(self.links.seconds(spread, asked, ways), 1e-12)
        limits = np.where(asked[:, 0] == 0, self.input_s, self.other_s)
        return np.clip(limits / each, 1, most).astype(np.int64)
