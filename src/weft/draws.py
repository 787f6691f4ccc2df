"""Which packets get lost: a pure function of (seed, stream, step, attempt, slot, sender, receiver).

    numbers = uniforms(Draws(seed=1, stream=TRAINING, slots=9, devices=9), first=0, steps=100)
    arrived = numbers < delivery        # steps x attempts x slots x n x n

A counter-based generator (Philox) gives the numbers of any step without those before it. So a simulation that
draws a hundred steps at once and a device that draws one link of one step get the same losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TRAINING, TESTING, DRILLS = 0, 1, 2  # streams: one never changes what another draws
NOBODY = -1
_WORDS = 4  # numbers that Philox makes per count


@dataclass(frozen=True)
class Draws:
    """A run's source of losses. `attempts`: how often a message is sent at most."""

    seed: int
    stream: int
    slots: int
    devices: int
    attempts: int = 1


@dataclass(frozen=True)
class Drills:
    """In how many of a hundred minibatches one of the workers is left out, so that the network learns to
    do without any one of them."""

    seed: int
    percent: float
    workers: tuple[int, ...]  # by their numbers in the fleet

    def absent(self, first: int, steps: int) -> NDArray[np.int64]:
        """Who is left out of minibatches first .. first + steps - 1; NOBODY out of most."""
        if not self.percent or not self.workers:
            return np.full(steps, NOBODY)
        bits = np.random.Philox(key=[self.seed, DRILLS], counter=[first, 0, 0, 0])
        drawn = np.random.Generator(bits).random((steps, _WORDS))
        which = np.array(self.workers)[(drawn[:, 1] * len(self.workers)).astype(np.int64)]
        return np.where(drawn[:, 0] < self.percent / 100, which, NOBODY)


def uniforms(draws: Draws, first: int, steps: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) for steps first .. first + steps - 1: steps x attempts x slots x n x n."""
    shape = (draws.attempts, draws.slots, draws.devices, draws.devices)
    size = int(np.prod(shape))
    counts = -(-size // _WORDS)
    bits = np.random.Philox(key=[draws.seed, draws.stream], counter=[first * counts, 0, 0, 0])
    found = np.random.Generator(bits).random((steps, counts * _WORDS))
    return found[:, :size].reshape(steps, *shape)


def uniform(
    draws: Draws, step: int, slot: int, sender: int, receiver: int, attempt: int = 0
) -> float:
    """One packet's number. The packet arrives if it is below the link's delivery probability."""
    return float(uniforms(draws, step, 1)[0, attempt, slot, sender, receiver])
