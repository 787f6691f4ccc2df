"""In which order a pipeline stage does its forwards and backwards: pure functions on integers.

One forward, one backward: a stage does a few forwards first, then alternates, then does the remaining
backwards. The number of first forwards falls from `in_flight` at the first stage to one at the last. Three
stages, four micro-batches, three in flight, time to the right:

    stage 0, ahead 3   F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
    stage 1, ahead 2   .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..
    stage 2, ahead 1   .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

Pass = tuple[Literal["forward", "backward"], int]  # the kind, and the micro-batch


def micro_sizes(batch: int, micro_batches: int) -> list[int]:
    """Samples in each micro-batch, as even as possible, the larger ones first.

    >>> micro_sizes(10, 4)
    [3, 3, 2, 2]
    """
    size, rest = divmod(batch, micro_batches)
    return [size + (micro < rest) for micro in range(micro_batches)]


def forwards_ahead(stage: int, stages: int, micro_batches: int, in_flight: int) -> int:
    """How many forwards a stage does before its first backward."""
    if stages == 1:
        return 1
    return min(micro_batches, 1 + round((in_flight - 1) * (stages - 1 - stage) / (stages - 1)))


def one_forward_one_backward(micro_batches: int, ahead: int) -> Iterator[Pass]:
    """The passes of one stage that runs `ahead` forwards before its first backward.

    >>> " ".join(f"{what[0]}{micro}" for what, micro in one_forward_one_backward(3, 2))
    'f0 f1 b0 f2 b1 b2'
    """
    for micro in range(micro_batches + ahead):
        if micro >= ahead:
            yield "backward", micro - ahead
        if micro < micro_batches:
            yield "forward", micro
