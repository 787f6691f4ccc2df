"""Measuring a network where it will run: on real node processes, kept for the next run, with its age."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Device, Fleet
from weft.graph.optimizers.optimizer import Optimizer
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.launch import Place
from weft.runtime.run.measuring import known
from weft.runtime.run.measuring.known import Measurement, age, known_profile, measured_fleet
from weft.runtime.run.measuring.survey import MeasuredLink, MessageTimes, Pair, Survey, link_of
from weft.runtime.wire import messages as msg

Subject = Any


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("WEFT_CACHE", raising=False)
    return tmp_path / "weft" / "measured"


def place(nodes: LocalFleet) -> Place:
    return Place(join=(nodes.endpoint,), group=nodes.group)


def test_a_fleet_and_a_profile_are_measured_in_one_go(
    nodes: LocalFleet, small: Subject, kept: Path
) -> None:
    said: list[str] = []
    measured = measured_fleet(
        small.graph, place(nodes), batch=8, training=True, wait=0.5, say=said.append
    )
    assert set(measured.fleet.names) == set(nodes.names)
    assert len(measured.fleet.link) == 3, said
    assert all(link.up_mbps > 1 and link.down_mbps > 1 for link in measured.fleet.link)
    hosts = {times.host for times in measured.profile.devices.values()}
    assert len(hosts) == 1
    assert hosts != {""}
    for times in measured.profile.devices.values():
        assert times.forward(0, small.last, 8) > 0
        assert times.backward(0, small.last, 8) > 0
        assert times.message_s > 1e-6
        assert times.encode(1 << 20, "int8") > 1e-5
        assert times.decode(1 << 20, "int8") > 1e-5
        assert 0 < times.share <= 1
        assert times.cores >= 1
    assert len(list(kept.iterdir())) == 3
    assert any("layers" in line for line in said)


def test_a_pair_that_did_not_answer_once_is_asked_again(
    nodes: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a node needed more than 2 s for an empty message, and the fleet lacked a link."""
    survey = Survey(nodes.crew, nodes.names)
    asked: list[tuple[str, str]] = []

    def pair(self: Survey, run: str, a: str, b: str) -> Pair | None:
        asked.append((a, b))
        return None if asked.count((a, b)) < 2 and "pi" in (a, b) else of_pair(a, b)

    monkeypatch.setattr(Survey, "_pair", pair)
    assert {p.link.between for p in survey.pairs()} == set(combinations(nodes.names, 2))
    assert len(asked) == 5  # pi's two pairs twice


def of_pair(a: str, b: str) -> Pair:
    cost = MessageTimes(1e-5, 1e-9)
    return Pair(MeasuredLink((a, b), 1e6, 1e6, 1e-3), (cost, cost))


def test_times_are_measured_once_and_their_age_is_told(
    nodes: LocalFleet,
    small: Subject,
    triangle: Fleet,
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = known_profile(small.graph, triangle, place(nodes), batch=8, training=True)
    assert first.notes == ("pi, nuc, cloud: measured now",)
    later = known.time.time() + 7300
    monkeypatch.setattr(known.time, "time", lambda: later)
    monkeypatch.setattr(Survey, "layers", _never)
    again = known_profile(small.graph, triangle, place(nodes), batch=8, training=True)
    assert again.profile == first.profile
    assert again.notes == tuple(f"{name}: measured 2 hours ago" for name in triangle.names)


def _never(*_: object, **__: object) -> None:
    raise AssertionError("it was measured again")


def test_another_network_batch_or_host_is_measured_anew(small: Subject, kept: Path) -> None:
    measurement = Measurement(small.graph, 8, True)
    times = known.derive_profile(small.graph, Fleet((Device("pi", gflops=1.0),))).devices["pi"]
    times = msgspec.structs.replace(times, host="one")
    measurement.keep("pi", times)
    assert measurement.kept("pi", "one") is not None
    assert measurement.kept("pi", "other") is None
    assert measurement.kept("nuc", "one") is None
    for other in (
        Measurement(small.graph, 16, True),
        Measurement(small.graph, 8, False),
        Measurement(small.graph, 8, True, Optimizer("adam")),
        Measurement(msgspec.structs.replace(small.graph, name="other"), 8, True),
    ):
        assert other.kept("pi", "one") is None


def test_times_are_kept_for_each_setting_of_a_node(small: Subject, kept: Path) -> None:
    measurement = Measurement(small.graph, 8, True)
    times = known.derive_profile(small.graph, Fleet((Device("pi", gflops=1.0),))).devices["pi"]
    measurement.keep("pi", times, "cpu x4")
    assert measurement.kept("pi", times.host) is None
    assert measurement.kept("pi", times.host, "cuda:0") is None
    assert measurement.kept("pi", times.host, "cpu x4") is not None


@pytest.mark.proof
def test_a_device_that_is_not_there_goes_by_its_gflops_or_is_refused(
    nodes: LocalFleet, small: Subject, triangle: Fleet, kept: Path
) -> None:
    away = Fleet((*triangle.devices, Device("away", gflops=3.0)), triangle.link)
    found = known_profile(small.graph, away, place(nodes), batch=8, training=False)
    assert found.notes[-1] == "away: not there; times derived from gflops"
    unknown = Fleet((*triangle.devices, Device("away")), triangle.link)
    with pytest.raises(InputError, match="away: gflops is missing"):
        known_profile(small.graph, unknown, place(nodes), batch=8, training=False)


def test_a_busy_node_is_not_measured(nodes: LocalFleet, small: Subject) -> None:
    survey = Survey(nodes.crew, ("pi", "nuc"))
    with survey._opened():  # the nodes have a job
        with pytest.raises(WeftError, match="busy with a run"):
            Survey(nodes.crew, ("pi",))
        with pytest.raises(WeftError, match="times measured now would be wrong"):
            nodes.crew.ask("pi", msg.MeasureLayers(small.graph, (4,)), 10.0)
    assert Survey(nodes.crew, ("pi",)).hosts["pi"].busy is False


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sizes": (1 << 20,)}, "samples"),
        ({"sizes": ()}, "batch sizes"),
        ({"sizes": (0,)}, "at least 1"),
        ({"budget_s": 1e6}, "seconds of measuring"),
        ({"repeats": 100_000}, "rounds"),
    ],
)
def test_a_node_refuses_to_measure_too_much(
    nodes: LocalFleet, small: Subject, fields: dict[str, Any], words: str
) -> None:
    command = msgspec.structs.replace(msg.MeasureLayers(small.graph, (4,)), **fields)
    with pytest.raises(InputError, match=words):
        nodes.crew.ask("pi", command, 10.0)


def test_a_node_takes_no_network_that_is_larger_than_its_memory(
    nodes: LocalFleet, small: Subject
) -> None:
    name = next(iter(small.graph.state))
    state = {**small.graph.state, name: msgspec.structs.replace(
        small.graph.state[name], shape=(1 << 20, 1 << 16))}  # fmt: skip
    large = msgspec.structs.replace(small.graph, state=state)
    with pytest.raises(InputError, match="bytes of weights"):
        nodes.crew.ask("pi", msg.MeasureLayers(large, (4,)), 10.0)


def test_a_link_is_told_at_the_rate_that_was_measured_and_without_the_time_of_a_message() -> None:
    cost = MessageTimes(100e-6, 1e-9)
    slow = link_of(Pair(MeasuredLink(("a", "b"), 1e6, 2e6, 3e-3), (cost, cost)))
    assert slow.rtt_s == pytest.approx(3e-3 - 4 * 100e-6)
    assert slow.up_bytes_per_s == 1e6  # the ends work while the link carries
    fast = link_of(Pair(MeasuredLink(("a", "b"), 0.5e9, 1e12, 1e-4), (cost, cost)))
    assert fast.rtt_s == 0.0
    assert fast.up_bytes_per_s == 0.5e9
    assert fast.down_bytes_per_s < 1e12  # nothing is that fast: a clock was too coarse


@pytest.mark.parametrize(("seconds", "words"), [(3, "3 s"), (61, "1 minute"), (90000, "1 day")])
def test_an_age_is_told_in_words(seconds: float, words: str) -> None:
    assert age(seconds) == words
