"""The pipeline between a client and one worker, minibatch by minibatch, by formulas.

    pipe = Pipeline(forward_s, backward_s, in_flight, noise, begin_s, lay)
    pipe.run(500, ends)           # appends the end of each minibatch in seconds

    client  F1 F2 .. Fk  B1 F(k+1)  B2 F(k+2)  ...
    uplink  after F(n), in order;  worker after the arrival, in order;  downlink after that, in order

Every resource works in order. So the times of a minibatch follow from those of the minibatch before
it. No event queue is needed, and 10,000 minibatches take some hundredths of a second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from weft.strategies.edgemove.model import Variation

# Variation of one minibatch's seconds (deviation / mean).
WORKER_CV, CLIENT_CV, LINK_CV = (0.3, 0.05, 0.1)
VARIATION = Variation(CLIENT_CV, WORKER_CV, LINK_CV, LINK_CV)
MARGIN_S = 60  # the road must be known so far ahead: longer than any minibatch is in flight


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
    """Seconds of a minibatch that starts in each second. Lists, because one entry is read at a time."""

    up_s: list[float]
    work_s: list[float]
    down_s: list[float]
    half_rtt_s: list[float]
    leaves_s: float  # the second from which the worker is out of reach


class Pipeline:
    """The pipeline of one setting, empty at first. `lay(t)` gives the road at least up to second t."""

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
        # The second when each becomes free.
        self.client = self.up = self.worker = self.down = begin_s
        self.ahead: deque[float] = deque()  # ends of the forward passes that are in flight

    @property
    def leaves_s(self) -> float:
        """The second from which the worker is out of reach."""
        return self.road.leaves_s

    def run(self, count: int, ends: list[float]) -> bool:
        """Do `count` more minibatches; True if the worker went out of reach before they were done."""
        noise, last = self.noise.client, len(self.noise.client) - 1
        ahead, k = self.ahead, self.in_flight
        first = len(ends)
        for n in range(first, first + count):
            # Forward passes up to F(n + k - 1) come before B(n). At first this fills the pipeline.
            while len(ahead) < k:
                self.client += self.forward_s * noise[min(n + len(ahead), last)]
                ahead.append(self.client)
            if not self.finish(n, ends):
                return True
        return False

    def flush(self, ends: list[float], steps: int) -> bool:
        """Finish the minibatches in flight and start no new one; True if the worker went out of reach."""
        while self.ahead and len(ends) < steps:
            if not self.finish(len(ends), ends):
                return True
        return False

    def finish(self, n: int, ends: list[float]) -> bool:
        """Compute the times of minibatch n after its forward pass; False if the worker is out of reach."""
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
