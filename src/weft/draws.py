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

TRAINING, TESTING = 0, 1  # streams: testing does not change the numbers of training
_WORDS = 4  # numbers that Philox makes for each value of its counter


@dataclass(frozen=True)
class Draws:
    """A run's source of losses. `attempts`: how often a message is sent at most."""

    seed: int
    stream: int
    slots: int
    devices: int
    attempts: int = 1


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
