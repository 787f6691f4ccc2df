"""A run's timeline as OpenTelemetry traces: `weft train --otel`, or from Python

    send_traces(result.timeline, "lenet5 by chain")

One trace for a run: below the run are its minibatches, below each minibatch what devices and links did for
it. Where the spans go is said by OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from weft.errors import InputError, WeftError
from weft.program.timeline import Span, Timeline
from weft.runtime.run.watch.callbacks import Callback, StepDone

BATCH = 512  # spans in a message
NEEDS = "traces for OpenTelemetry need its packages: pip install 'weft[otel]'"


class TraceSender(Callback):
    """Knows when the last minibatch was done, to place the timeline in the day.

    sender = TraceSender()               # InputError here, before a run, if the packages are missing
    result = weft.train(..., callbacks=[sender])
    sender.send(result.timeline, "lenet5 by chain")
    """

    def __init__(self) -> None:
        self._exporter, self._ended_at_s = otlp(), time.time()

    def on_step(self, done: StepDone) -> None:
        self._ended_at_s = time.time()

    def send(self, timeline: Timeline, name: str) -> int:
        """How many spans were sent; see `send_traces`."""
        return send_traces(timeline, name, ended_at_s=self._ended_at_s, exporter=self._exporter)


def otlp() -> Any:
    """The exporter that speaks OTLP over HTTP. InputError where its packages are not installed."""
    try:
        import opentelemetry.sdk.trace  # noqa: F401  # an exporter alone sends nothing
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise InputError(NEEDS) from None
    exporter: Any = OTLPSpanExporter
    return exporter()


def send_traces(
    timeline: Timeline, name: str, *, ended_at_s: float | None = None, exporter: Any = None
) -> int:
    """Sends all spans but the waits; how many. WeftError if they did not arrive.

    A timeline begins at 0. `ended_at_s` is the time of day at which its last minibatch was done: now if not
    given.
    """
    exporter = exporter or otlp()
    from opentelemetry.sdk.trace.export import SpanExportResult

    end = max(timeline.step_ends, default=timeline.makespan)
    origin_s = (time.time() if ended_at_s is None else ended_at_s) - end
    spans, sent = iter(otel_spans(timeline, name, origin_s)), 0
    while batch := list(islice(spans, BATCH)):
        if exporter.export(batch) is not SpanExportResult.SUCCESS:
            raise WeftError(
                f"the traces were not sent after {sent} spans: the receiver that"
                " OTEL_EXPORTER_OTLP_ENDPOINT names (else http://localhost:4318) did not take them"
            )
        sent += len(batch)
    return sent


def otel_spans(timeline: Timeline, name: str, origin_s: float) -> Iterator[Any]:
    """The spans of OpenTelemetry, parents after their children."""
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    # Set here, because OpenTelemetry's own name would be `unknown_service`.
    service = os.environ.get("OTEL_SERVICE_NAME", "weft")
    tracer = TracerProvider(resource=Resource.create({"service.name": service})).get_tracer("weft")

    def at(seconds: float) -> int:
        return round((origin_s + seconds) * 1e9)

    def begun(title: str, start: float, parent: Any, attributes: dict[str, Any]) -> Any:
        context = trace.set_span_in_context(parent) if parent is not None else None
        return tracer.start_span(title, context, start_time=at(start), attributes=attributes)

    whole = begun(name, 0.0, None, {"weft.source": timeline.source})
    for step, spans in sorted(by_step(timeline).items()):
        minibatch = begun(
            f"minibatch {step}", min(s.start for s in spans), whole, {"weft.step": step}
        )
        for span in spans:
            one = begun(f"{span.what} {span.label}".rstrip(), span.start, minibatch, details(span))
            one.end(at(span.end))
            yield one
        minibatch.end(at(max(s.end for s in spans)))
        yield minibatch
    whole.end(at(timeline.makespan))
    yield whole


def by_step(timeline: Timeline) -> dict[int, Sequence[Span]]:
    """What was done for each minibatch. To wait is not to do something."""
    steps: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.what != "wait":
            steps[span.step].append(span)
    return dict(steps)


def details(span: Span) -> dict[str, Any]:
    """What a span is about. A link is named as in plans: `pi>nuc`."""
    where = "weft.link" if span.what == "transfer" else "weft.device"
    known: dict[str, Any] = {where: span.where, "weft.step": span.step, "weft.micro": span.micro}
    if span.bytes:
        known["weft.bytes"] = span.bytes
    return known
