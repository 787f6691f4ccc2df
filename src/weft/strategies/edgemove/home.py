"""The pipeline's period where the labels stay at home: the client has the first layers and the last one.

    home_period(stages, in_flight=2)

A minibatch goes there and back twice, and the client works on it three times:

    client  F A ─a─►                ─► F C, loss, B C ─gb─►               ─► B A
    worker            F B ─b─►                               B B ─ga─►

With k = s + 1 in flight the client is p = ceil(s / 2) ticks behind with C and s with B A, the worker s - p
with B B (program/passes/stale.py). Devices and links do their work in that fixed order. So a tick is as
long as the longest circle of things that wait for each other, over the ticks that the circle spans:
`WAITS` is who waits for whom, and there are some twenty circles.
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
MOST = 8  # in flight: the fewest that do are looked for up to here


class HomeStages(NamedTuple):
    """Seconds per minibatch; arrays of one shape."""

    first_s: Floats  # of the client's first layers, forward, backward and update
    last_s: Floats  # of the last layer, on the client
    forward_s: Floats  # of the worker
    backward_s: Floats  # of the worker, with its update
    activations_s: Floats  # to the worker (a)
    outputs_s: Floats  # back to the client (b)
    output_gradients_s: Floats  # to the worker (gb)
    gradients_s: Floats  # back to the client (ga)
    rtt_s: Floats  # propagation there and back, once
    link_s: Floats  # that the busiest channel is taken

    @property
    def way_s(self) -> Floats:
        """Seconds of one minibatch's whole way, nobody else on it."""
        whole: Floats = np.sum(self[:8], axis=0) + 2 * self.rtt_s
        return whole


class Wait(NamedTuple):
    """`later` waits for `earlier`: of the same tick, or of one that is (constant + p * behind + s * stale)
    ticks before."""

    earlier: str
    later: str
    constant: int = 0
    behind: int = 0
    stale: int = 0
    half_trips: int = 0  # propagation on the way


NODES = ("A", "C", "FB", "BB", "a", "b", "gb", "ga")  # in the order of HomeStages
# B A and the next F A follow each other on the client: together they are A, which begins with B A.
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
    """Things that wait for each other in a circle, and how many ticks it spans."""

    nodes: tuple[int, ...]
    constant: int
    behind: int
    stale: int
    half_trips: int


@functools.cache
def circles() -> tuple[Circle, ...]:
    """Every circle of `WAITS`, once: it begins at its first node in the order of NODES."""
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
    """Steady-state seconds per minibatch."""
    stale = np.asarray(in_flight) - 1
    behind = (stale + 1) // 2
    longest = np.maximum(stages.link_s, 0.0)
    for circle in circles():
        seconds = sum(stages[node] for node in circle.nodes) + circle.half_trips * stages.rtt_s / 2
        ticks = circle.constant + circle.behind * behind + circle.stale * stale
        longest = np.maximum(longest, seconds / np.maximum(ticks, 1))
    return longest


def useful_at_home(stages: HomeStages) -> NDArray[np.int64]:
    """The fewest minibatches in flight, up to MOST, that are as fast as any."""
    periods = np.array([home_period(stages, count) for count in range(1, MOST + 1)])
    enough = periods <= periods.min(axis=0) * (1 + 1e-9)
    first: NDArray[np.int64] = enough.argmax(axis=0).astype(np.int64) + 1
    return first


@dataclass(frozen=True)
class LastAtHome:
    """The last layer at the client, and the worker's forward pass without it."""

    client_s: float  # of the last layer, forward, backward and update
    worker_s: float  # the same on the worker, which does not do it
    forward_s: Floats  # by cut: the worker's, without the last layer
    output_bytes: float  # what comes home for the last layer
    gradient_bytes: float  # and what goes back

    @staticmethod
    def of(profile: Profile, client: str, worker: str, batch: int) -> LastAtHome:
        """Of two devices of a profile."""
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
        """The same with a codec on both ways."""
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
        """By way and cut, from the seconds with all layers after the cut on the worker; `sent_s` is what
        activations and gradients of the cut take, `link` the two rates, the round trip, and whether both
        ways are one channel."""
        up, down, rtt, shared = link
        forward = self.forward_s[1 : client_s.shape[1] + 1] * slowdown
        up_s, down_s = sent_s
        outputs, gradients = self.output_bytes / down, self.gradient_bytes / up
        there, back = up_s + gradients, down_s + outputs
        rest = worker_s - self.worker_s * slowdown - forward
        parts = (client_s, np.asarray(self.client_s), forward, rest, up_s, outputs, gradients, down_s,
                 rtt, np.maximum(np.maximum(there, back), shared * (there + back)))  # fmt: skip
        return HomeStages(*(np.broadcast_to(part, client_s.shape) for part in parts))
