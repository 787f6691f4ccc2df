"""Emulated links and speeds that follow a trace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.fleet.fleet import Device, Fleet, Link
from weft.fleet.trace import Moment, Trace
from weft.runtime.emulate.changes import changes_of
from weft.runtime.wire.links.changes import ChangingLink, LinkState

FLEET = Fleet(
    (Device("phone"), Device("e1"), Device("e2")),
    (Link(("phone", "e1"), 8.0, 8.0), Link(("phone", "e2"), 8.0, 8.0), Link(("e1", "e2"), 80.0, 80.0)),
)  # fmt: skip


def test_a_message_under_way_goes_on_at_the_new_rate() -> None:
    link = ChangingLink((LinkState(0, 100, 0), LinkState(10, 50, 0.5), LinkState(20, 0, 0)), 1000.0)
    assert link.book(1000.0, 500) == (1000.0, 1005.0)
    assert link.book(1001.0, 700) == (
        1005.0,
        1014.0,
    )  # 500 bytes by 1010, the rest at half the rate
    assert link.book(1014.0, 301) == (1014.0, math.inf)  # 300 bytes by 1020, then nothing crosses
    assert link.latency(1005.0) == 0
    assert link.latency(1012.0) == 0.5


@given(
    st.lists(st.tuples(st.floats(0.1, 5), st.floats(1, 100)), min_size=1, max_size=6),
    st.lists(st.integers(0, 500), min_size=1, max_size=10),
)
def test_what_has_left_is_the_area_under_the_rate(
    pieces: list[tuple[float, float]], sizes: list[int]
) -> None:
    at, states = 0.0, []
    for seconds, rate in pieces:
        states.append(LinkState(at, rate, 0.0))
        at += seconds
    link = ChangingLink(tuple(states), 0.0)
    for size in sizes:
        end = link.book(0.0, size)[1]
    area = 0.0
    for state, after in zip(states, [*(s.at_s for s in states[1:]), math.inf], strict=True):
        area += state.bytes_per_s * max(0.0, min(after, end) - state.at_s)
    assert area == pytest.approx(sum(sizes), abs=1e-6)


def test_a_device_out_of_reach_keeps_its_wire_to_the_other_servers() -> None:
    trace = Trace((
        Moment(2.0, device="e1", in_reach=False), Moment(3.0, device="e1", slowdown=4.0),
        Moment(5.0, device="e1", in_reach=True),
    ))  # fmt: skip
    changes = changes_of(trace, FLEET, "e1", "phone", start=100.0)
    assert [(s.at_s, s.bytes_per_s) for s in changes.links["e1>phone"]] == [
        (0.0, 1e6), (2.0, 0.0), (5.0, 1e6),
    ]  # fmt: skip
    assert [s.bytes_per_s for s in changes.links["e1>e2"]] == [1e7]
    assert [changes.slowdown(100.0 + t) for t in (0, 2.5, 3, 9)] == [1.0, 1.0, 4.0, 4.0]
    phone = changes_of(trace, FLEET, "phone", "phone", start=100.0)
    assert [s.bytes_per_s for s in phone.links["phone>e1"]] == [1e6, 0.0, 1e6]
    assert [s.bytes_per_s for s in phone.links["phone>e2"]] == [1e6]
