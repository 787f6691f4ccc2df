"""A timeline as OpenTelemetry spans: minibatches below the run, what was done below its minibatch."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from weft import cli
from weft.commands.app import app
from weft.errors import InputError, WeftError
from weft.program.timeline import Span, Timeline
from weft.report.otel import otlp, send_traces

assert cli.main  # importing the command line has registered every command
FIRST = str(Path(__file__).resolve().parents[2] / "examples" / "fleets" / "first.toml")
TIMELINE = Timeline(
    (Span("pi", "forward", 0.5, 1.0, 0, 1, "0-3"), Span("pi", "wait", 1.0, 1.5, 0),
     Span("pi>nuc", "transfer", 1.0, 1.25, 0, 0, "a", 4000), Span("nuc", "update", 2.0, 3.0, 1)),
    (1.5, 3.0), "measured",
)  # fmt: skip


def test_without_the_packages_the_run_is_refused_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InputError, match=r"pip install 'weft\[otel\]'"):
        otlp()
    words = ["train", "lenet5", "-d", "mnist5k", "-f", FIRST, "-s", "chain", "-n", "1", "--local"]
    done = CliRunner().invoke(app, [*words, "--otel"])
    assert done.exit_code == 2, done.output
    assert "pip install 'weft[otel]'" in " ".join(done.output.split())


def sent(timeline: Timeline, **options: Any) -> list[Any]:
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    count = send_traces(timeline, "lenet5 by chain", exporter=exporter, **options)
    spans = list(exporter.get_finished_spans())
    assert count == len(spans)
    return spans


def test_minibatches_are_below_the_run_and_what_was_done_below_its_minibatch() -> None:
    spans = sent(TIMELINE, ended_at_s=1003.0)
    names = {span.context.span_id: span.name for span in spans}
    below = {span.name: names.get(span.parent.span_id) if span.parent else None for span in spans}
    assert below == {
        "lenet5 by chain": None,
        "minibatch 0": "lenet5 by chain", "minibatch 1": "lenet5 by chain",
        "forward 0-3": "minibatch 0", "transfer a": "minibatch 0", "update": "minibatch 1",
    }  # fmt: skip
    assert len({span.context.trace_id for span in spans}) == 1
    assert {span.resource.attributes["service.name"] for span in spans} == {"weft"}


def test_spans_have_their_time_of_day_and_say_where_and_what() -> None:
    spans = {span.name: span for span in sent(TIMELINE, ended_at_s=1003.0)}
    seconds = {name: (s.start_time / 1e9, s.end_time / 1e9) for name, s in spans.items()}
    assert seconds["forward 0-3"] == (1000.5, 1001.0)
    assert seconds["minibatch 0"] == (1000.5, 1001.25)
    assert seconds["lenet5 by chain"] == (1000.0, 1003.0)
    assert spans["forward 0-3"].attributes == {"weft.device": "pi", "weft.step": 0, "weft.micro": 1}
    assert spans["transfer a"].attributes["weft.link"] == "pi>nuc"
    assert spans["transfer a"].attributes["weft.bytes"] == 4000


def test_a_long_run_is_sent_whole() -> None:
    many = tuple(Span("pi", "forward", n, n + 1.0, n) for n in range(3000))
    assert len(sent(Timeline(many, tuple(float(n) for n in range(3000))))) == 6001


def test_spans_that_do_not_arrive_are_an_error() -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export")

    class Refuses:
        def export(self, spans: object) -> object:
            return export.SpanExportResult.FAILURE

    with pytest.raises(WeftError, match="the traces were not sent"):
        send_traces(TIMELINE, "x", exporter=Refuses())


@contextmanager
def receiver() -> Iterator[tuple[str, list[Any]]]:
    """An OTLP receiver on the loopback; what it was sent."""
    proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    messages: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            messages.append(proto.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", messages
    finally:
        server.shutdown()


def test_a_run_sends_its_spans_to_a_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with receiver() as (url, messages):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        words = [
            "train",
            "lenet5",
            "-d",
            "mnist5k",
            "-f",
            FIRST,
            "-s",
            "chain",
            "-n",
            "3",
            "--local",
        ]
        done = CliRunner().invoke(app, [*words, "--otel"])
    assert done.exit_code == 0, done.output
    names = Counter(
        span.name.split()[0]
        for message in messages
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )
    assert names["minibatch"] == 3
    assert names["lenet5"] == 1
    assert names["backward"] >= 3
    assert f"sent {sum(names.values())} spans by OpenTelemetry" in done.output
