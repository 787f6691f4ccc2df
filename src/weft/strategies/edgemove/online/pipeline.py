"""The pipeline between a client and one worker, minibatch by minibatch, in closed form.

    pipe = Pipeline(forward_s, backward_s, in_flight, noise, begin_s, lay)
    pipe.run(500, ends)           # appends when each minibatch was done

    client  F1 F2 .. Fk  B1 F(k+1)  B2 F(k+2)  ...
    uplink  after F(n), in turn;  worker after its arrival, in turn;  downlink after that, in turn

Every resource serves in order, so each minibatch's times follow from those of the one before; no
event queue is needed, and 10,000 minibatches take some hundredths of a second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from weft.strategies.edgemove.model import Spread

WORKER_CV, CLIENT_CV, LINK_CV = 0.3, 0.05, 0.1  # of one minibatch's seconds
SPREAD = Spread(CLIENT_CV, WORKER_CV, LINK_CV, LINK_CV)
MARGIN_S = 60  # what must be known of the road ahead: longer than any minibatch is under way


class Noise(NamedTuple):
    """A factor of mean 1 for each minibatch, by resource."""

    client: list[float]
    worker: list[float]
    up: list[float]
    down: list[float]


def draw_noise(random: np.random.Generator, steps: int) -> Noise:
    """Random factors for the times of each minibatch."""

    def draw(cv: float) -> list[float]:
        sigma = math.sqrt(math.log1p(cv * cv))
        drawn: list[float] = random.lognormal(-sigma * sigma / 2, sigma, steps).tolist()
        return drawn

    return Noise(draw(CLIENT_CV), draw(WORKER_CV), draw(LINK_CV), draw(LINK_CV))


class Road(NamedTuple):
    """What a minibatch takes that sets out in each second; lists, as one is read at a time."""

    up_s: list[float]
    work_s: list[float]
    down_s: list[float]
    half_rtt_s: list[float]
    leaves_s: float  # from then on the worker is out of reach


class Pipeline:
    """One setting's pipeline, empty at first. `lay(t)` gives the road at least up to second t."""

    def __init__(
        self,
        forward_s: float,
        backward_s: float,
        in_flight: int,
        noise: Noise,
        begin_s: float,
        lay: Callable[[float], Road],
    ) -> None:
        self.forward_s, self.backward_s, self.in_flight = forward_s, backward_s, in_flight
        self.noise, self.lay = noise, lay
        self.road = lay(begin_s + MARGIN_S)
        self.client = self.up = self.worker = self.down = begin_s  # when each is free again
        self.ahead: deque[float] = deque()  # when the forward passes in flight ended

    @property
    def leaves_s(self) -> float:
        return self.road.leaves_s

    def run(self, count: int, ends: list[float]) -> bool:
        """`count` minibatches more; True where the worker was out of reach before they were done."""
        noise, last = self.noise.client, len(self.noise.client) - 1
        ahead, k = self.ahead, self.in_flight
        first = len(ends)
        for n in range(first, first + count):
            # Up to F(n + k - 1), which comes before B(n); at first this fills the pipeline.
            while len(ahead) < k:
                self.client += self.forward_s * noise[min(n + len(ahead), last)]
                ahead.append(self.client)
            if not self.finish(n, ends):
                return True
        return False

    def flush(self, ends: list[float], steps: int) -> bool:
        """What is in flight is finished, nothing new begins; True where that did not succeed."""
        while self.ahead and len(ends) < steps:
            if not self.finish(len(ends), ends):
                return True
        return False

    def finish(self, n: int, ends: list[float]) -> bool:
        """The way of minibatch n after its forward pass; False where the worker is gone."""
        sent = self.ahead.popleft()
        second = int(sent)
        if second + MARGIN_S >= len(self.road.up_s):
            self.road = self.lay(sent + 2 * MARGIN_S)
        road, noise = self.road, self.noise
        half = road.half_rtt_s[second]
        up = (sent if sent > self.up else self.up) + road.up_s[second] * noise.up[n]
        there, worker = up + half, self.worker
        worker = (there if there > worker else worker) + road.work_s[second] * noise.worker[n]
        down = (worker if worker > self.down else self.down) + road.down_s[second] * noise.down[n]
        back, client = down + half, self.client
        client = (back if back > client else client) + self.backward_s * noise.client[n]
        if client > road.leaves_s:
            return False
        self.up, self.worker, self.down, self.client = up, worker, down, client
        ends.append(client)
        return True
