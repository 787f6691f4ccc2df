"""A walk through the city becomes a trace that a small fleet can follow."""

from __future__ import annotations

import runpy
from pathlib import Path

import msgspec
import numpy as np
import pytest

from weft.errors import InputError
from weft.fleet.city import PEAK_UP, Day, generated_city
from weft.fleet.city_trace import city_trace, covering
from weft.fleet.fleet import Device, Fleet, Link
from weft.fleet.mobility import Walk
from weft.fleet.trace import Trace, check

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FLEET = Fleet(
    (Device("phone", data=True), Device("a", "edge"), Device("b", "edge"), Device("sky", "cloud")),
    (
        Link(("phone", "a"), 60.0, 120.0),
        Link(("b", "phone"), 80.0, 40.0),
        Link(("phone", "sky"), 60.0, 120.0),
    ),
)


def a_day() -> Day:
    city = generated_city(4)
    return Day(city, Walk(city.box, 5.0, 4), 4)


def test_the_fleet_follows_the_walk_in_a_hurry() -> None:
    day = a_day()
    trace = city_trace(day, FLEET, length_s=40.0, hurry=3.0)
    check(trace, FLEET)
    seconds = np.arange(0, 40, 2) * 3
    site = covering(day.until(200).reach[seconds, :-1], 2)[0]
    for at in (0.0, 10.0, 38.0):
        truth = day.at(at * 3)
        assert trace.in_reach("a", at) == truth.reach[site]
        assert trace.in_reach("sky", at)
        sky = trace.link(FLEET.link[2], at)
        assert sky.up_mbps == pytest.approx(60 * truth.up_bytes_per_s[-1] / PEAK_UP, abs=0.01)
        assert sky.latency_ms == pytest.approx(500 * truth.rtt_s[-1], abs=0.1)
        assert trace.path("phone", at)[-1] == pytest.approx(
            day.walk.at(np.array([at * 3]))[0], abs=0.1
        )
        if truth.reach[site]:
            assert trace.slowdown("a", at) == pytest.approx(truth.slowdown[site], abs=0.01)


def test_up_is_from_the_client_whichever_way_the_fleet_names_the_link() -> None:
    """b's link is given from b: 40 Mbps from the phone, 80 Mbps to it."""
    moments = [m for m in city_trace(a_day(), FLEET, 40.0, 3.0).moment if m.link == ("phone", "b")]
    assert moments
    for moment in moments:
        assert moment.up_mbps is not None
        assert moment.down_mbps == pytest.approx(2 * moment.up_mbps, abs=0.02)
        assert moment.up_mbps < 40 * 2  # lognormal weather on at most the whole rate


def test_the_servers_that_cover_most_stand_for_the_city() -> None:
    reach = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]], dtype=bool)
    assert covering(reach, 3) == [0, 1, 2]
    assert covering(reach[:4], 2) == [0, 2]


def test_a_fleet_without_a_client_or_without_its_links_is_refused() -> None:
    with pytest.raises(InputError, match="data = true"):
        city_trace(a_day(), Fleet(FLEET.devices[1:], ()), 10.0)
    with pytest.raises(InputError, match="no link between phone and a"):
        city_trace(a_day(), Fleet(FLEET.devices[:2], ()), 10.0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_recorded_walks_are_what_their_script_writes(seed: int) -> None:
    script = runpy.run_path(str(EXAMPLES / "traces" / "write_city.py"))
    fleet = Fleet.load(EXAMPLES / "fleets" / "city.toml")
    path = EXAMPLES / "traces" / f"city-{seed}.json"
    found = Trace.load(path, fleet).moment
    written = msgspec.json.decode(script["recorded"](seed), type=Trace).moment
    assert len(found) == len(written)
    for one, other in zip(found, written, strict=True):  # other processors may round otherwise
        assert (one.at_s, one.device, one.link, one.in_reach) == (
            other.at_s, other.device, other.link, other.in_reach,
        )  # fmt: skip
        assert (one.position or ()) == pytest.approx(other.position or (), abs=0.11)
        for key in ("slowdown", "up_mbps", "down_mbps", "latency_ms"):
            assert getattr(one, key) == pytest.approx(getattr(other, key), abs=0.11)
