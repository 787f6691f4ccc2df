"""Each device knows its links and the next hop to everyone, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.runtime.emulate.roads import involved, roads_of
from weft.runtime.wire.links.shaping import clock_name

ROW = Fleet(
    tuple(Device(name) for name in ("pi", "nuc", "cloud", "island")),
    (Link(("pi", "nuc"), 8.0, 16.0, 2.0), Link(("nuc", "cloud"), 80.0, 80.0)),
)
ALL = ("pi", "nuc", "cloud")


def test_a_relayed_message_goes_to_the_next_hop() -> None:
    roads = {name: roads_of(ROW, name, ALL, shaping="fabric", cut_through=True) for name in ALL}
    assert roads["pi"].next_hop == {"nuc": "nuc", "cloud": "nuc"}
    assert roads["nuc"].next_hop == {"pi": "pi", "cloud": "cloud"}
    assert roads["cloud"].next_hop == {"nuc": "nuc", "pi": "nuc"}
    assert [link.neighbour for link in roads["pi"].links] == ["nuc"]
    (down,) = [link for link in roads["nuc"].links if link.neighbour == "pi"]
    assert (down.channel, down.bytes_per_s, down.latency_s) == ("nuc>pi", 2e6, 0.002)


def test_relays_between_partners_are_involved_and_islands_are_not() -> None:
    assert set(involved(ROW, ("pi", "cloud"))) == {"pi", "nuc", "cloud"}
    assert involved(ROW, ("pi", "cloud"))[0] == "pi"
    assert involved(ROW, ("pi",)) == ("pi",)
    assert involved(ROW, ("pi", "island")) == ("pi", "island")


@pytest.mark.parametrize(("shaping", "rate"), [("fabric", 1e6), ("latency", 0.0)])
def test_the_kernel_may_do_the_rate_and_the_fabric_the_latency(shaping: str, rate: float) -> None:
    roads = roads_of(ROW, "pi", ALL, shaping=shaping, cut_through=False)  # type: ignore[arg-type]
    assert (roads.links[0].bytes_per_s, roads.links[0].latency_s) == (rate, 0.002)
    assert not roads.cut_through


def test_on_real_links_everybody_is_a_neighbour() -> None:
    roads = roads_of(ROW, "pi", ALL, shaping="none", cut_through=True)
    assert roads.next_hop == {"nuc": "nuc", "cloud": "cloud"}
    assert all(link.bytes_per_s == link.latency_s == 0.0 for link in roads.links)


def test_all_members_of_a_medium_book_the_same_clock(tmp_path: Path) -> None:
    fleet = Fleet(
        tuple(Device(name) for name in ("gw", "a", "b")),
        medium=(Medium("air", "gw", ("a", "b"), 100.0),),
    )
    names = ("gw", "a", "b")
    links = [
        link
        for name in names
        for link in roads_of(
            fleet, name, names, shaping="fabric", cut_through=True, scratch=tmp_path
        ).links
    ]
    assert len(links) == 4
    assert {link.shared for link in links} == {clock_name("air")}
    assert roads_of(fleet, "a", names, shaping="fabric", cut_through=True).next_hop["b"] == "gw"
