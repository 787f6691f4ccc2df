"""What devices say they did when, as one Timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from weft.program.timeline import Span, Timeline
from weft.runtime.wire import messages as msg


def moved(span: Span, by: float) -> Span:
    return Span(span.where, span.what, span.start + by, span.end + by, span.step, span.micro,
                span.label, span.bytes)  # fmt: skip


def on_one_clock(told: Mapping[str, msg.Spans], offsets: Mapping[str, float]) -> list[Span]:
    """The spans of all devices; `offsets` is what to add to a device's clock."""
    return [moved(s, offsets[d]) for d, spans in told.items() for s in spans.spans]


def added(a: msg.Spans, b: msg.Spans) -> msg.Spans:
    """What a device counted under two plans, one after the other."""
    counts = {k: a.counts.get(k, 0) + b.counts.get(k, 0) for k in {**a.counts, **b.counts}}
    return msg.Spans((), counts, a.compute_cpu_s + b.compute_cpu_s, a.total_cpu_s + b.total_cpu_s)


def total_counts(nodes: Mapping[str, msg.Spans]) -> Counter[str]:
    """Messages, packets and losses of all devices over the whole run."""
    total: Counter[str] = Counter()
    for spans in nodes.values():
        total.update(spans.counts)
    return total


def done_everywhere(spans: list[Span]) -> int:
    """The newest minibatch that every device with weights has updated them for."""
    newest: dict[str, int] = {}
    for span in spans:
        if span.what == "update":
            newest[span.where] = max(newest.get(span.where, -1), span.step)
    return min(newest.values(), default=-1)


def timeline_of(found: list[Span], beat: int, last: int | None = None) -> Timeline:
    """Spans in order, from 0 on. `last` is the newest minibatch whose end counts; `beat`, after how many
    minibatches the schedule repeats."""
    begin = min((s.start for s in found), default=0.0)
    spans = tuple(sorted((moved(s, -begin) for s in found), key=lambda s: s.start))
    ends: dict[int, float] = {}
    for span in spans:
        if span.what != "transfer" and (last is None or span.step <= last):
            ends[span.step] = max(ends.get(span.step, 0.0), span.end)
    return Timeline(spans, tuple(ends[s] for s in sorted(ends)), "measured", max(2, beat))
