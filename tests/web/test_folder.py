"""A folder becomes documents: for a run that goes on, for one that has ended, for broken files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from weft.fleet.trace import Moment, Trace
from weft.plans.plan import Plan
from weft.program.timeline import Span, Timeline
from weft.web import folder as folders
from weft.web.feed import Feed
from weft.web.folder import RunFolder, runs_in
from weft.web.gantt import MOST_BARS, gantt, rates
from weft.web.lines import POINTS, Curves, Events, Lines

MakeFolder = Callable[..., Path]


def test_a_run_that_goes_on_is_told_whole(make_folder: MakeFolder, plan: Plan) -> None:
    run = RunFolder("first", make_folder())
    assert run.read() >= {"run", "fleet", "plan", "predicted", "measured", "curves", "events"}
    assert run.read() == set()  # nothing has changed
    parts = run.parts
    json.dumps(parts)
    assert parts["run"]["state"] == "runs"
    assert (parts["run"]["done"], parts["run"]["steps"]) == (6, 40)
    assert parts["run"]["problems"] == []
    states = {device["name"]: device["state"] for device in parts["fleet"]["devices"]}
    assert states == {"pi": "works", "nuc": "works", "cloud": "lost"}
    assert parts["fleet"]["devices"][0]["cpu_share"] == 0.25
    link = parts["fleet"]["links"][1]
    assert (link["up_mbps"], link["down_mbps"], link["losses"]) == (20.0, 10.0, [0.01, 0.01])
    assert [shard["device"] for shard in parts["plan"]["shards"]] == [s.device for s in plan.shards]
    assert parts["predicted"]["step_s"] == plan.predicted.seconds  # type: ignore[union-attr]
    assert parts["measured"]["bars"]
    assert parts["curves"]["step"] == [0, 1, 2, 3, 4, 5]
    assert parts["curves"]["tests"] == {"loss": [(6, 1.4)], "accuracy": [(6, 0.5)]}
    assert [event["kind"] for event in parts["events"]["rows"]] == ["device_lost", "recovered"]


def test_growth_and_a_new_plan_change_only_their_parts(make_folder: MakeFolder, plan: Plan) -> None:
    path = make_folder()
    run = RunFolder("first", path)
    run.read()
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "loss": 1.3}\n{"step": 7, "lo')
    assert run.read() == {"curves", "run"}
    assert run.parts["curves"]["step"][-1] == 6
    assert run.parts["curves"]["lr"][-1] is None  # an older run wrote no rates
    msgspec.structs.replace(plan, version=1).save(path / "plan.json")
    assert run.read() == {"plan"}


def test_a_run_that_stopped_writing_is_not_said_to_run(make_folder: MakeFolder) -> None:
    path = make_folder()
    long_ago = time.time() - 100
    os.utime(path / "live.json", (long_ago, long_ago))
    run = RunFolder("first", path)
    run.read()
    assert run.parts["run"]["state"] == "silent"
    failed = RunFolder("second", make_folder("second", "failed", why="nuc is gone"))
    failed.read()
    assert (failed.parts["run"]["state"], failed.parts["run"]["why"]) == ("failed", "nuc is gone")


def test_a_folder_of_an_older_version_is_shown_too(
    make_folder: MakeFolder, timeline: Timeline
) -> None:
    path = make_folder(state=None)
    (path / "events.jsonl").unlink()
    timeline.save(path / "timeline.json")
    run = RunFolder("first", path)
    run.read()
    assert run.parts["run"]["state"] == "unknown"
    assert run.parts["measured"]["minibatches"] == 6
    assert {d["state"] for d in run.parts["fleet"]["devices"]} <= {"works", "idle"}


def test_what_cannot_be_read_is_said_in_words(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_folder()
    (path / "live.json").write_text('{"state": "dances"}')
    (path / "timeline.json").write_text("[" * 2000)
    monkeypatch.setitem(folders.MOST_BYTES, "timeline.json", 1000)
    run = RunFolder("first", path)
    run.read()
    live, timeline = run.parts["run"]["problems"]
    assert live.startswith("live.json cannot be shown: ")
    assert timeline == "timeline.json has 0 MB; files above 0 MB are not shown"
    (path / "plan.json").write_text("{}")
    other = RunFolder("first", path)
    assert other.read() == {"run"}
    assert any("plan.json cannot be shown" in words for words in other.parts["run"]["problems"])


def test_links_and_the_map_follow_the_trace(make_folder: MakeFolder) -> None:
    path = make_folder(trace_s=5.0)
    trace = Trace((
        Moment(0.0, device="pi", position=(0.0, 0.0)), Moment(0.0, device="nuc", position=(9.0, 9.0)),
        Moment(1.0, link=("pi", "nuc"), up_mbps=3.0), Moment(4.0, device="pi", position=(1.0, 2.0)),
        Moment(4.0, device="nuc", in_reach=False), Moment(6.0, device="pi", position=(5.0, 5.0)),
    ))  # fmt: skip
    (path / "trace.json").write_bytes(msgspec.json.encode(trace))
    run = RunFolder("first", path)
    run.read()
    assert run.parts["fleet"]["links"][0]["up_mbps"] == 3.0
    assert run.parts["fleet"]["devices"][1]["in_reach"] is False
    assert run.parts["map"] == {
        "places": {"pi": (1.0, 2.0), "nuc": (9.0, 9.0)}, "moves": "pi",
        "trail": [(0.0, 0.0), (1.0, 2.0)],
    }  # fmt: skip


def test_runs_are_the_folder_itself_or_those_in_it(make_folder: MakeFolder) -> None:
    one = make_folder("runs/one")
    other = make_folder("runs/other")
    os.utime(one / "metrics.jsonl", (1, 1))
    assert list(runs_in(one)) == ["one"]
    assert list(runs_in(other.parent)) == ["other", "one"]
    assert runs_in(other.parent / "nothing") == {}


def test_a_page_hears_of_each_change_once(make_folder: MakeFolder) -> None:
    path = make_folder()
    feed = Feed(path.parent)
    feed.refresh()
    heard = [msgspec.json.decode(message) for message in feed.since(0)]
    assert heard[0] == {"run": "", "part": "runs", "value": ["first"]}
    number = feed.number
    assert not feed.refresh()
    with (path / "events.jsonl").open("a") as file:
        file.write('{"step": 9, "kind": "replanned"}\n')
    make_folder("runs/second")
    feed.refresh()
    parts = {(m["run"], m["part"]) for m in map(msgspec.json.decode, feed.since(number))}
    assert {("", "runs"), ("first", "events"), ("second", "curves")} <= parts
    assert ("first", "curves") not in parts


def test_a_change_counts_only_when_it_can_be_heard(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages ask in another thread. One that had seen the number of a message before the message missed it."""
    feed = Feed(make_folder().parent)
    encode = msgspec.json.encode

    def asked_meanwhile(value: object) -> bytes:
        assert feed.number == len(feed.since(0))
        return encode(value)

    monkeypatch.setattr(msgspec.json, "encode", asked_meanwhile)
    assert feed.refresh()
    assert feed.number == len(feed.since(0)) == 9


def test_lines_wait_for_their_end_and_begin_anew_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = Lines(path)
    assert lines.read() == (False, [])
    path.write_text('{"a": 1}\nno json\n[1]\n{"a"')
    assert lines.read() == (True, [{"a": 1}])
    with path.open("a") as file:
        file.write(": 2}\n")
    assert lines.read() == (False, [{"a": 2}])
    path.write_text('{"a": 3}\n')
    assert lines.read() == (True, [{"a": 3}])
    path.unlink()
    assert lines.read() == (True, [])


def test_a_long_curve_is_thin_and_keeps_its_extremes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [f'{{"step": {n}, "loss": {99.0 if n == 5000 else 1.0}}}\n' for n in range(10_000)]
    path.write_text("".join(rows))
    curves = Curves(path)
    assert curves.read()
    document = curves.document()
    assert curves.done == 10_000
    assert len(document["step"]) == len(document["loss"]) == POINTS
    assert max(document["high"]) == 99.0
    assert max(document["loss"]) < 99.0


def test_a_timeline_is_cut_to_what_can_be_drawn(timeline: Timeline) -> None:
    document = gantt(timeline, 3)
    assert document["minibatches"] == 3
    assert min(bar[2] for bar in document["bars"]) == 0.0
    many = [Span("pi", "forward", n / 10, n / 10 + 0.1, n // 1000) for n in range(9_000)]
    assert len(gantt(Timeline(tuple(many), ()))["bars"]) <= MOST_BARS
    assert gantt(Timeline((), ()))["bars"] == []
    spans = (Span("a>b", "transfer", 1.0, 2.0, 0, bytes=500), Span("a", "forward", 2.0, 3.0, 0))
    assert rates(Timeline(spans, ())) == {"a>b": 250.0}


def test_events_of_a_stranger_have_no_end_of_kinds(tmp_path: Path) -> None:
    """Each kind is a label for Prometheus."""
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps({"kind": f"{n}" + "k" * 1000}) + "\n" for n in range(5000)))
    events = Events(path)
    events.read()
    assert len(events.counts) <= 101
    assert max(map(len, events.counts)) <= 64
    assert sum(events.counts.values()) == 5000


def test_a_file_that_breaks_its_reader_is_a_problem_in_words(
    make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: a plan with a layer that the network lacks ended the page for all runs."""

    def breaks(_: Path) -> Plan:
        raise IndexError("tuple index out of range")

    folder = RunFolder("first", make_folder())
    monkeypatch.setattr(folders, "load_plan", breaks)
    folder.read()
    assert folder.parts["run"]["problems"] == [
        "plan.json cannot be shown: IndexError: tuple index out of range"
    ]
