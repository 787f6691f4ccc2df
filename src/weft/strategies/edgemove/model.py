"""What one cut between a client and a worker costs, and the period of the pipeline over it.

    costs = split_costs(profile, "phone", "edge", batch=32)
    period(stage_seconds(costs, ways), in_flight=2)      # seconds per minibatch: ways x cuts

The client C, the uplink U, the worker W and the downlink D each do one thing at a time. Propagation
(rtt_s, there and back) adds delay but occupies nobody. With k minibatches in flight

    client  F1 F2 .. Fk  B1 F(k+1)  B2 F(k+2)  ...      the worker does forward and backward together

a full pipeline takes exactly  P = max(C, W, U, D, (C + W + U + D + RTT) / k)  per minibatch. It cannot
be faster than the busiest of the four, and each minibatch occupies one of k places from start to end.
If the labels stay at home, a minibatch is sent there and back twice: see home.py.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.codecs.registry import CodecName, coded_bytes
from weft.plans.online import Labels
from weft.plans.profile import DeviceTimes, Profile
from weft.strategies.edgemove.home import HomeStages, LastAtHome, home_period, useful_at_home

Floats = NDArray[np.float64]
NEWTON = 3  # steps of Newton's method: they make the period exact to 0.01%


@dataclass(frozen=True)
class SplitCosts:
    """Seconds and bytes of one minibatch, by the number of first layers that the client has."""

    forward_s: Floats  # the client's layers, forward
    client_s: Floats  # the client's layers: forward, backward and update
    worker_s: Floats  # all other layers on the worker when it is idle
    up_bytes: Floats  # activations, and the labels that are sent with them
    down_bytes: Floats  # gradients
    param_bytes: Floats  # weights of the client's layers
    label_bytes: int = 0  # the labels in `up_bytes`: they are never coded
    home: LastAtHome | None = (
        None  # set if the labels stay at home: then the client has the last layer too
    )

    @property
    def layers(self) -> int:
        return len(self.client_s) - 1

    @property
    def most_cut(self) -> int:
        """The most first layers that the client may have: the worker keeps one layer."""
        return self.layers - (1 if self.home is None else 2)

    @property
    def inner(self) -> slice:
        """The cuts that leave each side at least one layer."""
        return slice(1, self.most_cut + 1)

    @property
    def alone_s(self) -> float:
        """Seconds of a minibatch when the client trains alone."""
        return float(self.client_s[-1])

    @property
    def worker_bytes(self) -> Floats:
        """By cut: bytes of the weights that the worker holds."""
        end = self.layers if self.home is None else self.layers - 1
        held: Floats = np.maximum(self.param_bytes[end] - self.param_bytes, 0.0)
        return held

    def coded(self, codec: CodecName) -> SplitCosts:
        """The same network with coded activations and gradients (from float32)."""
        there, back = (
            np.array([coded_bytes(int(count), codec) for count in side], dtype=float)
            for side in (self.up_bytes - self.label_bytes, self.down_bytes)
        )
        there += self.label_bytes
        there[0] = self.up_bytes[0]  # at cut 0 samples are sent, and they are not coded
        home = None if self.home is None else self.home.coded(codec)
        return dataclasses.replace(self, up_bytes=there, down_bytes=back, home=home)


class Ways(NamedTuple):
    """What is known of one or several workers and the links to them: arrays with one entry per worker."""

    slowdown: Floats  # the worker's seconds divided by worker_s
    up_bytes_per_s: Floats
    down_bytes_per_s: Floats
    rtt_s: Floats
    shared: Floats = np.zeros(1)  # 1: both directions share one channel, such as Wi-Fi


class Stages(NamedTuple):
    """Seconds per minibatch of each resource, and of propagation; all arrays have one shape."""

    client_s: Floats
    worker_s: Floats
    up_s: Floats
    down_s: Floats
    rtt_s: Floats

    @property
    def way_s(self) -> Floats:
        """Seconds of one minibatch from start to end when it is alone in the pipeline."""
        whole: Floats = np.sum(self, axis=0)
        return whole


AnyStages = Stages | HomeStages


def split_costs(
    profile: Profile, client: str, worker: str, batch: int, labels: Labels = "worker"
) -> SplitCosts:
    """The costs of every cut between two devices of a profile."""
    mine, theirs = profile.devices[client], profile.devices[worker]
    layers = len(profile.layers)
    whole = _layer_seconds(theirs, layers, batch)
    riding = profile.labels_bytes(batch) if labels == "worker" else 0
    there = [batch * profile.cut_bytes(m) + riding for m in range(layers + 1)]
    forward = [mine.forward(index, index, batch) for index in range(layers)]
    return SplitCosts(
        forward_s=_prefix(forward),
        client_s=_prefix(_layer_seconds(mine, layers, batch)),
        worker_s=_prefix(whole[::-1])[::-1],
        up_bytes=np.array(there, dtype=float),
        down_bytes=np.array(
            [batch * profile.gradient_bytes(m) for m in range(layers + 1)], dtype=float
        ),
        param_bytes=_prefix([layer.param_bytes for layer in profile.layers]),
        label_bytes=riding,
        home=LastAtHome.of(profile, client, worker, batch) if labels == "home" else None,
    )


def stage_seconds(costs: SplitCosts, ways: Ways) -> AnyStages:
    """The stages by way (row) and by cut (column: 1, 2, ...); each side keeps at least one layer."""
    inner = costs.inner
    slowdown, up, down, rtt, shared = (np.atleast_1d(value)[:, None] for value in ways)
    worker = costs.worker_s[inner] * slowdown
    client = np.broadcast_to(costs.client_s[inner], worker.shape)
    up_s, down_s = costs.up_bytes[inner] / up, costs.down_bytes[inner] / down
    if costs.home is not None:
        return costs.home.stages(client, worker, slowdown, (up_s, down_s), (up, down, rtt, shared))
    rtts = np.broadcast_to(rtt, worker.shape)
    return Stages(client, worker, up_s + shared * down_s, (1 - shared) * down_s, rtts)


def period(stages: AnyStages, in_flight: int | NDArray[np.int64]) -> Floats:
    """Seconds per minibatch when the pipeline is full; `in_flight` is one number or one per entry."""
    if isinstance(stages, HomeStages):
        return home_period(stages, in_flight)
    client, worker, up, down, rtt = stages
    busiest = np.maximum(np.maximum(client, worker), np.maximum(up, down))
    seconds: Floats = np.maximum(busiest, (client + worker + up + down + rtt) / in_flight)
    return seconds


class Variation(NamedTuple):
    """How much single minibatches vary: standard deviation divided by mean, by resource."""

    client: float = 0.0
    worker: float = 0.0
    up: float = 0.0
    down: float = 0.0


def noisy_period(stages: Stages, in_flight: int | NDArray[np.int64], spread: Variation) -> Floats:
    """The period in seconds if single minibatches vary.

    The busiest resource (X seconds) is idle when the rest of the way, R, takes longer than the k - 1
    minibatches in between. If that difference is normally distributed,

        P = X + E[max(0, R - (k - 1) P + noise)]

    Without noise this is `period`. It is solved by Newton's method from below: the right side falls in P.
    """
    busiest = np.max(stages[:4], axis=0)
    rest = np.sum(stages, axis=0) - busiest
    others = np.asarray(in_flight, dtype=float) - 1
    variance = np.sum([(cv * x) ** 2 for cv, x in zip(spread, stages, strict=False)], axis=0)
    sigma = np.sqrt(variance * np.maximum(others, 1)) + 1e-9
    seconds = period(stages, in_flight)
    for _ in range(NEWTON):
        late = (rest - others * seconds) / sigma
        below = _normal_below(late)
        excess = sigma * (late * below + np.exp(-(late**2) / 2) / math.sqrt(2 * math.pi))
        seconds = seconds - (seconds - busiest - excess) / (1 + others * below)
    return seconds


def _normal_below(x: Floats) -> Floats:
    """The normal distribution function, by its logistic approximation (to 0.0002)."""
    share: Floats = 1 / (1 + np.exp(-np.clip(1.5976 * x + 0.070566 * x**3, -700, 700)))
    return share


def useful_in_flight(stages: AnyStages) -> NDArray[np.int64]:
    """The fewest minibatches in flight that keep the busiest resource busy."""
    if isinstance(stages, HomeStages):
        return useful_at_home(stages)
    client, worker, up, down, rtt = stages
    busiest = np.maximum(np.maximum(client, worker), np.maximum(up, down))
    # The 1e-9 is for rounding: 2.0000000001 must not mean a third version of the weights.
    count = np.ceil((client + worker + up + down + rtt) / busiest - 1e-9)
    return count.astype(np.int64)


def middling(sizes: Floats) -> float:
    """The size to assume for an unknown cut: the geometric mean, as cuts differ by orders of magnitude."""
    return float(np.exp(np.log(np.maximum(sizes, 1e-12)).mean()))


def approximate_cut(layers: int, client_s: float, worker_s: float, rtt_s: float) -> int:
    """Algorithm 1, from the seconds of all layers on each side; RTT includes transmission.

    >>> approximate_cut(16, 0.130, 0.016, 0.040)
    6
    """
    per_client, per_worker = client_s / layers, worker_s / layers
    if per_client + per_worker == 0:  # nothing is computed, so all cuts are equal
        return 1
    cut = (layers * per_worker + rtt_s) / (per_client + per_worker)
    return min(max(round(cut), 1), layers - 1)


def _layer_seconds(times: DeviceTimes, layers: int, batch: int) -> list[float]:
    return [
        times.forward(i, i, batch) + times.backward(i, i, batch) + times.update(i, i)
        for i in range(layers)
    ]


def _prefix(values: list[float] | list[int]) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.array(values, dtype=float))])
