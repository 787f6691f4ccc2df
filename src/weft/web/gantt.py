"""A timeline as the rows and bars that the page draws."""

from __future__ import annotations

from typing import Any

from weft.program.timeline import Span, Timeline
from weft.report.gantt_picture import row_names

MINIBATCHES = 6  # more would be too thin to see
MOST_BARS = 1500


def newest(timeline: Timeline, count: int = MINIBATCHES) -> list[Span]:
    """The spans of the last `count` whole minibatches, from 0 on; of fewer where there are many spans."""
    steps = sorted({span.step for span in timeline.spans})[-count:]
    while steps:
        spans = [s for s in timeline.spans if steps[0] <= s.step <= steps[-1] and s.end > s.start]
        if len(spans) <= MOST_BARS or len(steps) == 1:
            zero = min((s.start for s in spans), default=0.0)
            return [_moved(span, -zero) for span in spans[:MOST_BARS]]
        steps = steps[len(steps) // 2 :]
    return []


def gantt(timeline: Timeline, count: int = MINIBATCHES) -> dict[str, Any]:
    """Rows (devices first, then channels), bars, and the seconds of a minibatch."""
    spans = newest(timeline, count)
    rows = row_names([Timeline(tuple(spans), ())])
    place = {name: index for index, name in enumerate(rows)}
    return {
        "rows": rows,
        "bars": [
            [place[s.where], s.what, round(s.start, 6), round(s.end, 6), s.step, s.label, s.bytes]
            for s in spans
        ],
        "step_s": timeline.step_s if timeline.step_ends else None,
        "minibatches": len({s.step for s in spans}),
    }


def rates(timeline: Timeline) -> dict[str, float]:
    """Bytes per second that crossed each channel, over the time that the timeline covers."""
    covered = timeline.makespan - min((s.start for s in timeline.spans), default=0.0)
    crossed: dict[str, float] = {}
    for span in timeline.spans:
        if span.what == "transfer" and covered > 0:
            crossed[span.where] = crossed.get(span.where, 0.0) + span.bytes / covered
    return crossed


def _moved(span: Span, by: float) -> Span:
    return Span(span.where, span.what, span.start + by, span.end + by, span.step, span.micro,
                span.label, span.bytes)  # fmt: skip
