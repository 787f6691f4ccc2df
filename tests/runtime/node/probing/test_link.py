"""What a link carries under load, by the receiver's clock."""

from __future__ import annotations

import pytest

from weft.runtime.node.probing.link import CHUNKS, MOST_FILLINGS, Fillings
from weft.runtime.wire.frames import Header

SIZE = 1000


def rate(moments: list[float]) -> float:
    """Bytes per second of a filling whose chunks come at these moments."""
    fillings = Fillings()
    counted = [fillings.chunk(chunk(n, moment)) for n, moment in enumerate(moments)]
    assert counted[:-1] == [None] * (CHUNKS - 1)
    assert counted[-1] is not None
    count, seconds = counted[-1]
    return count / seconds


def chunk(number: int, due: float, source: str = "pi") -> Header:
    left = CHUNKS - 1 - number
    return Header("r", 0, 1, "probe", 3, left, source, "nuc", SIZE, due=due)


def test_a_first_burst_does_not_count() -> None:
    half = CHUNKS // 2
    moments = [0.001 * n for n in range(half)] + [
        0.001 * (half - 1) + 0.01 * (n + 1) for n in range(half)
    ]
    assert rate(moments) == pytest.approx(SIZE / 0.01, rel=0.01)


@pytest.mark.parametrize("stop", range(1, CHUNKS))
def test_a_receiver_that_pauses_does_not_make_a_link_faster(stop: int) -> None:
    """It did: a link of 1 Gbps was measured as 35. The chunks had waited in the kernel."""
    pause = 0.01 * (CHUNKS - stop)  # as long as all that is still to come takes
    moments = [0.01 * n if n < stop else 0.01 * stop + pause for n in range(CHUNKS)]
    assert rate(moments) <= SIZE / 0.01 * 1.01


def test_chunks_without_a_beginning_and_too_many_senders_are_not_counted() -> None:
    fillings = Fillings()
    assert fillings.chunk(chunk(CHUNKS - 1, 1.0)) == (0.0, 0.0)
    for n in range(MOST_FILLINGS + 1):
        fillings.chunk(chunk(0, 1.0, f"d{n}"))
    assert fillings.chunk(chunk(CHUNKS - 1, 2.0, f"d{MOST_FILLINGS}")) == (0.0, 0.0)
    assert fillings.chunk(chunk(CHUNKS - 1, 2.0, "d0")) == (SIZE, 1.0)
