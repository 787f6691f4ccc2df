"""Traces: values hold until the next moment that names them; mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.fleet.trace import Moment, Trace

FLEET = Fleet(
    (Device("phone"), Device("edge")), (Link(("phone", "edge"), 10.0, 20.0, 5.0),)
)  # fmt: skip


def test_a_value_holds_until_the_next_moment_that_names_it() -> None:
    trace = Trace((
        Moment(1.0, device="edge", slowdown=2.0), Moment(2.0, device="edge", in_reach=False),
        Moment(3.0, device="edge", slowdown=1.5), Moment(4.0, device="edge", in_reach=True),
    ))  # fmt: skip
    assert [trace.slowdown("edge", t) for t in (0, 1, 2.9, 3, 9)] == [1.0, 2.0, 2.0, 1.5, 1.5]
    assert [trace.in_reach("edge", t) for t in (0, 2, 3.9, 4)] == [True, False, False, True]
    assert trace.slowdown("phone", 9) == 1.0


def test_up_is_from_the_first_device_that_the_moment_names() -> None:
    there = Trace((Moment(1.0, link=("phone", "edge"), up_mbps=1.0, latency_ms=9.0),))
    back = Trace((Moment(1.0, link=("edge", "phone"), up_mbps=1.0),))
    link = FLEET.link[0]
    assert there.link(link, 0.5) == link
    assert there.link(link, 1.0) == Link(("phone", "edge"), 1.0, 20.0, 9.0)
    assert back.link(link, 1.0) == Link(("phone", "edge"), 10.0, 1.0, 5.0)
    assert there.fleet(FLEET, 2.0).path_rate("phone", "edge") == 125_000


@pytest.mark.parametrize("name", ["t.json", "t.toml"])
def test_both_kinds_of_file_are_read_and_put_in_order(tmp_path: Path, name: str) -> None:
    text = {
        "t.json": '{"moment": [{"at_s": 2, "device": "edge", "slowdown": 3}, '
        '{"at_s": 1, "device": "edge", "slowdown": 2}]}',
        "t.toml": '[[moment]]\nat_s = 2\ndevice = "edge"\nslowdown = 3\n'
        '[[moment]]\nat_s = 1\ndevice = "edge"\nslowdown = 2\n',
    }[name]
    path = tmp_path / name
    path.write_text(text)
    trace = Trace.load(path, FLEET)
    assert [m.at_s for m in trace.moment] == [1.0, 2.0]
    assert trace.slowdown("edge", 5) == 3.0


@pytest.mark.parametrize(
    ("moment", "says"),
    [
        ('{"at_s": -1, "device": "edge", "slowdown": 2}', "at_s = -1"),
        ('{"at_s": 1, "slowdown": 2}', "either device or link"),
        ('{"at_s": 1, "device": "edge"}', "changes nothing"),
        ('{"at_s": 1, "device": "edgy", "slowdown": 2}', "'edgy' is unknown; there are phone"),
        ('{"at_s": 1, "device": "edge", "slowdown": 0}', "slowdown = 0"),
        ('{"at_s": 1, "device": "edge", "up_mbps": 3}', "up_mbps = 3.0 does not belong"),
        ('{"at_s": 1, "link": ["edge", "edge"], "up_mbps": 3}', "no such \\[\\[link\\]\\]"),
        ('{"at_s": 1, "link": ["edge", "phone"], "latency_ms": -3}', "latency_ms = -3"),
        ('{"at_s": 1, "device": "edge", "speed": 3}', "speed"),
        ('{"at_s": 1, "device": "edge", "position": [3]}', "position"),
        ('{"at_s": 1, "link": ["edge", "phone"], "position": [3, 4]}', "does not belong here"),
        ("17", "not a trace"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, moment: str, says: str) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"moment": [' + moment + "]}")
    with pytest.raises(InputError, match=says):
        Trace.load(path, FLEET)
    with pytest.raises(InputError, match="No such file"):
        Trace.load(tmp_path / "none.json", FLEET)
