"""The pipeline's period if the labels stay at home: the client has the first layers and the last one.

    home_period(stages, in_flight=2)

A minibatch is sent there and back twice, and the client works on it three times:

    client  F A ─a─►                ─► F C, loss, B C ─gb─►               ─► B A
    worker            F B ─b─►                               B B ─ga─►

With k = s + 1 minibatches in flight, the client computes C p = ceil(s / 2) ticks later and B A s ticks
later, and the worker computes B B s - p ticks later (program/passes/stale.py). Devices and links work in
this fixed order. A tick is therefore as long as the longest circle of things that wait for each other,
divided by the ticks that the circle spans. `WAITS` lists what waits for what. It has about twenty circles.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.codecs.registry import CodecName, coded_bytes
from weft.plans.profile import Profile

Floats = NDArray[np.float64]
MOST = 8  # in flight: larger numbers are not tried


class HomeStages(NamedTuple):
    """Seconds per minibatch of each part; all arrays have one shape."""

    first_s: Floats  # the client's first layers: forward, backward and update
    last_s: Floats  # the last layer, on the client
    forward_s: Floats  # the worker's layers, forward
    backward_s: Floats  # the worker's layers, backward and update
    activations_s: Floats  # sent to the worker (a)
    outputs_s: Floats  # sent back to the client (b)
    output_gradients_s: Floats  # sent to the worker (gb)
    gradients_s: Floats  # sent back to the client (ga)
    rtt_s: Floats  # propagation there and back, once
    link_s: Floats  # time that the busiest channel is occupied

    @property
    def way_s(self) -> Floats:
        """Seconds of one minibatch from start to end when it is alone in the pipeline."""
        whole: Floats = np.sum(self[:8], axis=0) + 2 * self.rtt_s
        return whole


class Wait(NamedTuple):
    """`later` waits for `earlier`: of the same tick, or of an earlier one.

    It is (constant + p * behind + s * stale) ticks earlier.
    """

    earlier: str
    later: str
    constant: int = 0
    behind: int = 0
    stale: int = 0
    half_trips: int = 0  # times that half a round trip of propagation is waited for


NODES = ("A", "C", "FB", "BB", "a", "b", "gb", "ga")  # in the order of HomeStages
# On the client, B A and the next F A follow each other. Together they are node A, which begins with B A.
WAITS = (
    Wait("A", "C"),
    Wait("C", "A", 0),
    Wait("FB", "BB"),
    Wait("BB", "FB", 1),
    Wait("a", "gb"),
    Wait("gb", "a", 1),
    Wait("b", "ga"),
    Wait("ga", "b", 1),
    Wait("A", "a"),
    Wait("a", "FB", half_trips=1),
    Wait("FB", "b"),
    Wait("b", "C", behind=1, half_trips=1),
    Wait("C", "gb"),
    Wait("gb", "BB", behind=-2, stale=1, half_trips=1),
    Wait("BB", "ga"),
    Wait("ga", "A", behind=1, half_trips=1),
)


class Circle(NamedTuple):
    """Things that wait for each other in a circle, and the number of ticks that the circle spans."""

    nodes: tuple[int, ...]
    constant: int
    behind: int
    stale: int
    half_trips: int


@functools.cache
def circles() -> tuple[Circle, ...]:
    """Every circle of `WAITS` once. A circle begins at its first node in the order of NODES."""
    return tuple(circle for start in NODES for circle in _from((start,), ()))


def _from(path: tuple[str, ...], waits: tuple[Wait, ...]) -> Iterator[Circle]:
    for wait in WAITS:
        if wait.earlier != path[-1]:
            continue
        taken = (*waits, wait)
        if wait.later == path[0]:
            ticks = (sum(w.constant + (w.later == "A") for w in taken),
                     sum(w.behind for w in taken), sum(w.stale for w in taken))  # fmt: skip
            nodes = tuple(NODES.index(node) for node in path)
            yield Circle(nodes, *ticks, sum(w.half_trips for w in taken))
        elif wait.later not in path and NODES.index(wait.later) > NODES.index(path[0]):
            yield from _from((*path, wait.later), taken)


def home_period(stages: HomeStages, in_flight: int | NDArray[np.int64]) -> Floats:
    """Seconds per minibatch when the pipeline is full."""
    stale = np.asarray(in_flight) - 1
    behind = (stale + 1) // 2
    longest = np.maximum(stages.link_s, 0.0)
    for circle in circles():
        seconds = sum(stages[node] for node in circle.nodes) + circle.half_trips * stages.rtt_s / 2
        ticks = circle.constant + circle.behind * behind + circle.stale * stale
        longest = np.maximum(longest, seconds / np.maximum(ticks, 1))
    return longest


def useful_at_home(stages: HomeStages) -> NDArray[np.int64]:
    """The fewest minibatches in flight, at most MOST, that are as fast as any other number."""
    periods = np.array([home_period(stages, count) for count in range(1, MOST + 1)])
    enough = periods <= periods.min(axis=0) * (1 + 1e-9)
    first: NDArray[np.int64] = enough.argmax(axis=0).astype(np.int64) + 1
    return first


@dataclass(frozen=True)
class LastAtHome:
    """The last layer on the client, and the worker's forward pass without this layer."""

    client_s: float  # the last layer on the client: forward, backward and update
    worker_s: float  # the same on the worker, which does not compute it
    forward_s: Floats  # by cut: the worker's forward pass without the last layer
    output_bytes: float  # sent to the client for the last layer
    gradient_bytes: float  # sent back to the worker

    @staticmethod
    def of(profile: Profile, client: str, worker: str, batch: int) -> LastAtHome:
        """The numbers for two devices of a profile."""
        last = len(profile.layers) - 1

        def whole(device: str) -> float:
            times = profile.devices[device]
            work = times.forward(last, last, batch) + times.backward(last, last, batch)
            return work + times.update(last, last)

        theirs = profile.devices[worker]
        forward = [theirs.forward(cut, last - 1, batch) for cut in range(last + 2)]
        return LastAtHome(
            whole(client), whole(worker), np.array(forward, dtype=float),
            float(batch * profile.cut_bytes(last)), float(batch * profile.gradient_bytes(last)),
        )  # fmt: skip

    def coded(self, codec: CodecName) -> LastAtHome:
        """The same with coded messages in both directions."""
        return dataclasses.replace(
            self,
            output_bytes=float(coded_bytes(int(self.output_bytes), codec)),
            gradient_bytes=float(coded_bytes(int(self.gradient_bytes), codec)),
        )

    def stages(
        self,
        client_s: Floats,
        worker_s: Floats,
        slowdown: Floats,
        sent_s: tuple[Floats, Floats],
        link: tuple[Floats, Floats, Floats, Floats],
    ) -> HomeStages:
        """The stages for each way (rows) and cut (columns).

        `client_s` and `worker_s` are the seconds if the worker has all layers after the cut. `sent_s` are the
        seconds for the activations and the gradients of the cut. `link` holds the two rates, the round trip,
        and 1 if both directions share one channel.
        """
        up, down, rtt, shared = link
        forward = self.forward_s[1 : client_s.shape[1] + 1] * slowdown
        up_s, down_s = sent_s
        outputs, gradients = self.output_bytes / down, self.gradient_bytes / up
        there, back = up_s + gradients, down_s + outputs
        rest = worker_s - self.worker_s * slowdown - forward
        parts = (client_s, np.asarray(self.client_s), forward, rest, up_s, outputs, gradients, down_s,
                 rtt, np.maximum(np.maximum(there, back), shared * (there + back)))  # fmt: skip
        return HomeStages(*(np.broadcast_to(part, client_s.shape) for part in parts))
