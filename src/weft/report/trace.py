"""Timelines as a Chrome trace: open the file at https://ui.perfetto.dev or in chrome://tracing.

    save_trace(Path("trace.json"), {"predicted": predicted, "measured": measured})

A timeline is a process, and each device and channel is a thread. A thread's events must nest. So if messages
overlap on a channel (one still under way, the next already sent), the channel gets another thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from weft.errors import InputError
from weft.program.timeline import Span, Timeline

Event = dict[str, Any]


def chrome_trace(timelines: Mapping[str, Timeline]) -> bytes:
    """The JSON document. Times are in microseconds, as the format requires."""
    events: list[Event] = []
    for process, (name, timeline) in enumerate(timelines.items(), start=1):
        events += process_events(process, name, timeline)
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def save_trace(path: Path, timelines: Mapping[str, Timeline]) -> None:
    """Writes timelines as a Chrome trace, which Perfetto opens."""
    try:
        path.write_bytes(chrome_trace(timelines))
    except OSError as error:
        raise InputError(f"trace file {path}: {error.strerror or error}") from None


def process_events(process: int, name: str, timeline: Timeline) -> Iterator[Event]:
    """The events of one timeline: a process of the trace."""
    yield metadata("process_name", process, 0, name=name)
    yield metadata("process_sort_index", process, 0, sort_index=process)
    for thread, (label, spans) in enumerate(threads(timeline), start=1):
        yield metadata("thread_name", process, thread, name=label)
        yield metadata("thread_sort_index", process, thread, sort_index=thread)
        for span in spans:
            yield complete(process, thread, span)
    for step, end in enumerate(timeline.step_ends):
        yield {"ph": "i", "s": "p", "name": f"step {step} done", "cat": "step",
               "pid": process, "tid": 0, "ts": microseconds(end)}  # fmt: skip


def threads(timeline: Timeline) -> list[tuple[str, list[Span]]]:
    """Devices first, then channels. Each is split into threads in which no two spans overlap."""
    channels = {span.where for span in timeline.spans if span.what == "transfer"}
    names = dict.fromkeys(span.where for span in timeline.spans)
    rows: list[tuple[str, list[Span]]] = []
    for name in sorted(names, key=lambda name: name in channels):
        lanes: list[list[Span]] = []
        spans = [span for span in timeline.spans if span.where == name]
        for span in sorted(spans, key=lambda span: (span.start, span.end)):
            lane = next((lane for lane in lanes if lane[-1].end <= span.start), None)
            if lane is None:
                lane = []
                lanes.append(lane)
            lane.append(span)
        for index, lane in enumerate(lanes, start=1):
            rows.append((name if index == 1 else f"{name} ({index})", lane))
    return rows


def complete(process: int, thread: int, span: Span) -> Event:
    """A span as an event with a duration."""
    detail: Event = {"step": span.step, "micro": span.micro}
    if span.label:
        detail["label"] = span.label
    if span.bytes:
        detail["bytes"] = span.bytes
    start = microseconds(span.start)
    return {
        "ph": "X",
        "name": f"{span.what} {span.label}".rstrip(),
        "cat": span.what,
        "pid": process,
        "tid": thread,
        "ts": start,
        "dur": round(microseconds(span.end) - start, 3),
        "args": detail,
    }


def metadata(kind: str, process: int, thread: int, **values: str | int) -> Event:
    """An event that names a process or a thread."""
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": values}


def microseconds(seconds: float) -> float:
    """Seconds as the unit of Chrome traces."""
    return round(seconds * 1e6, 3)
