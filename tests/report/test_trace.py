"""A trace holds every span once, in lanes that Perfetto can show."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.program.timeline import Span, Timeline
from weft.report.trace import chrome_trace, save_trace


def events(timelines: dict[str, Timeline], phase: str) -> list[dict[str, Any]]:
    document = json.loads(chrome_trace(timelines))
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_each_timeline_is_a_process_and_each_device_and_channel_a_thread(
    predicted: Timeline, measured: Timeline
) -> None:
    names = events({"predicted": predicted, "measured": measured}, "M")
    processes = {e["pid"]: e["args"]["name"] for e in names if e["name"] == "process_name"}
    assert processes == {1: "predicted", 2: "measured"}
    for process in processes:
        threads = [
            e["args"]["name"] for e in names if e["name"] == "thread_name" and e["pid"] == process
        ]
        assert threads == ["pi", "nuc", "pi>nuc", "nuc>pi"]


def test_every_span_is_one_complete_event_in_microseconds(predicted: Timeline) -> None:
    found = events({"predicted": predicted}, "X")
    assert len(found) == len(predicted.spans)
    transfer = next(e for e in found if e["cat"] == "transfer")
    assert transfer["ts"] == pytest.approx(110_000)
    assert transfer["dur"] == pytest.approx(80_000)
    assert transfer["args"] == {"step": 0, "micro": 0, "label": "act2.0", "bytes": 50_000}


def test_the_end_of_each_step_is_marked(predicted: Timeline) -> None:
    marks = events({"predicted": predicted}, "i")
    assert [mark["ts"] for mark in marks] == pytest.approx([420_000, 840_000, 1_260_000, 1_680_000])


moments = st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from(["a", "b>a"]))


@given(st.lists(moments, max_size=30))
def test_no_two_events_of_a_thread_overlap(spans: list[tuple[int, int, str]]) -> None:
    timeline = Timeline(
        tuple(Span(where, "transfer", t / 10, (t + n) / 10, 0) for t, n, where in spans), ()
    )
    by_thread: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events({"x": timeline}, "X"):
        by_thread[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, by_thread.values())) == len(spans)
    for times in by_thread.values():
        times.sort()
        for (_, end), (start, _) in pairwise(times):
            assert start >= end - 1e-3  # a nanosecond, from rounding


def test_a_trace_that_cannot_be_written_is_an_error_with_its_path(
    tmp_path: Path, predicted: Timeline
) -> None:
    save_trace(tmp_path / "t.json", {"predicted": predicted})
    assert json.loads((tmp_path / "t.json").read_bytes())["traceEvents"]
    with pytest.raises(InputError, match=r"missing.t\.json: No such file"):
        save_trace(tmp_path / "missing" / "t.json", {"predicted": predicted})
