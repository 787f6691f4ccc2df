"""A device's timeline in little memory: what comes out is what went in; a full ring forgets the oldest."""

from __future__ import annotations

import threading
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.program.timeline import Span
from weft.runtime.wire import span_ring
from weft.runtime.wire.span_ring import OTHER, SpanRing

TIMES = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(-(1 << 63), (1 << 63) - 1)
SPANS = st.builds(Span, st.text(), st.text(), TIMES, TIMES, COUNTS, COUNTS, st.text(), COUNTS)


@given(st.lists(SPANS), st.integers(1, 7))
def test_the_newest_spans_come_back_as_they_were(spans: list[Span], most: int) -> None:
    ring = SpanRing(most)
    for span in spans:
        ring.add(*msgspec.structs.astuple(span))
    assert list(ring) == spans[-most:]
    assert list(reversed(ring)) == spans[-most:][::-1]
    assert len(ring) == min(most, len(spans))


def test_it_grows_to_its_size_and_not_beyond() -> None:
    """Two lists of 50,000 spans took 18 MB of a device in 3,000 minibatches."""
    ring = SpanRing(50_000)
    ring.add("pi", "forward", 0.0, 1.0, 0, 0, "")
    tracemalloc.start()
    try:
        for step in range(120_000):
            ring.add("pi", "forward", step + 0.1, step + 0.2, step, 3, "-".join("03"), 99)
        assert tracemalloc.get_traced_memory()[0] < 3e6
    finally:
        tracemalloc.stop()
    assert next(iter(ring)).step == 70_000
    assert next(reversed(ring)).step == 119_999


def test_more_words_than_there_is_room_for_are_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_ring, "MOST_WORDS", 4)
    ring = SpanRing(10)
    for step in range(3):
        ring.add("pi", "send", 0.0, 0.0, step, 0, f"label {step}")
    assert [span.label for span in ring] == ["label 0", OTHER, OTHER]


def test_it_is_read_while_others_write() -> None:
    ring = SpanRing(1000)

    def write(name: str) -> None:
        for step in range(5000):
            ring.add(name, "send", step, step, step, 0, name, step)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("pi", "nuc", "cloud")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert all(span.where == span.label and span.step == span.bytes for span in ring)
    for thread in threads:
        thread.join(60.0)
    assert len(ring) == 1000
