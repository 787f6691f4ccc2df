"""Routes: the fewest hops, then the widest; rates as the papers' cost models see them."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Device, Fleet, Link, Medium, Tier

MBPS = 1e6 / 8


def fleet_of(names: str, *links: Link, media: tuple[Medium, ...] = ()) -> Fleet:
    return Fleet(tuple(Device(name) for name in names.split()), links, media)


LINE = fleet_of(
    "pi nuc cloud far",
    Link(("pi", "nuc"), 5, 10, latency_ms=2),
    Link(("nuc", "cloud"), 3, 6, latency_ms=20, loss=0.5),
)
WIFI = fleet_of(
    "gw a b",
    media=(Medium("wifi", "gw", ("a", "b"), 100, latency_ms=1),),
)


def channels(fleet: Fleet, source: str, dest: str) -> list[str]:
    return [hop.channel for hop in fleet.route(source, dest)]


def test_a_device_reaches_itself_at_once() -> None:
    assert LINE.route("pi", "pi") == ()
    assert LINE.path_rate("pi", "pi") == math.inf
    assert LINE.path_latency("pi", "pi") == 0


def test_a_link_has_its_own_bandwidth_each_way() -> None:
    assert LINE.path_rate("pi", "nuc") == 5 * MBPS
    assert LINE.path_rate("nuc", "pi") == 10 * MBPS
    assert channels(LINE, "pi", "nuc") == ["pi>nuc"]
    assert channels(LINE, "nuc", "pi") == ["nuc>pi"]


def test_loss_takes_its_share_of_the_bandwidth() -> None:
    (hop,) = LINE.route("nuc", "cloud")
    assert hop.bytes_per_s == pytest.approx(1.5 * MBPS)
    assert (hop.loss, hop.latency_s) == (0.5, 0.02)


def test_a_path_is_as_slow_as_its_slowest_hop_or_as_all_of_them_together() -> None:
    assert channels(LINE, "pi", "cloud") == ["pi>nuc", "nuc>cloud"]
    assert LINE.path_rate("pi", "cloud", "min") == pytest.approx(1.5 * MBPS)
    whole = LINE.path_rate("pi", "cloud", "store_and_forward")
    assert 1 / whole == pytest.approx(1 / (5 * MBPS) + 1 / (1.5 * MBPS))
    assert LINE.path_latency("pi", "cloud") == pytest.approx(0.022)


def test_members_of_a_medium_meet_at_its_gateway() -> None:
    hops = WIFI.route("a", "b")
    assert [(hop.source, hop.dest, hop.channel) for hop in hops] == [
        ("a", "gw", "wifi"),
        ("gw", "b", "wifi"),
    ]
    assert len(WIFI.hops()) == 4


def test_no_route_names_both_ends() -> None:
    with pytest.raises(WeftError, match="no route from 'pi' to 'far'") as caught:
        LINE.route("pi", "far")
    assert not isinstance(caught.value, InputError)
    assert not LINE.connected("pi", "far")
    assert LINE.connected("pi", "cloud")


def test_an_unknown_device_is_answered_with_the_known_ones() -> None:
    for ask in (LINE.device, lambda name: LINE.route("pi", name)):
        with pytest.raises(InputError, match="no device 'pie'; its devices are: pi, nuc, cloud"):
            ask("pie")


def test_fewest_hops_win_over_bandwidth_and_bandwidth_among_equals() -> None:
    fleet = fleet_of(
        "a b c d",
        Link(("a", "d"), 1, 1),
        Link(("a", "b"), 90, 90),
        Link(("b", "c"), 5, 5),
        Link(("d", "c"), 100, 100),
    )
    assert channels(fleet, "a", "d") == ["a>d"], "one slow hop rather than three fast ones"
    assert channels(fleet, "a", "c") == ["a>b", "b>c"], "5 Mbps at the slowest against 1"


def test_the_faster_of_a_link_and_a_medium_is_taken() -> None:
    media = (Medium("wifi", "a", ("b",), 10),)
    assert channels(fleet_of("a b", Link(("a", "b"), 5, 20), media=media), "a", "b") == ["wifi"]
    assert channels(fleet_of("a b", Link(("a", "b"), 5, 20), media=media), "b", "a") == ["b>a"]


@given(st.lists(st.floats(1, 9), min_size=10, max_size=10), st.sets(st.integers(0, 9)))
def test_the_route_is_the_best_of_all_simple_paths(speeds: list[float], kept: set[int]) -> None:
    names = "abcde"
    pairs = list(itertools.combinations(names, 2))
    links = [Link(pairs[i], speeds[i], speeds[i] + 1) for i in sorted(kept)]
    fleet = fleet_of(" ".join(names), *links)
    rate = {(hop.source, hop.dest): hop.bytes_per_s for hop in fleet.hops()}
    found = []
    for n in range(4):
        for middle in itertools.permutations("bcd", n):
            steps = list(itertools.pairwise(["a", *middle, "e"]))
            if all(step in rate for step in steps):
                found.append((len(steps), -min(rate[step] for step in steps)))
    if not found:
        assert not fleet.connected("a", "e")
        with pytest.raises(WeftError):
            fleet.route("a", "e")
    else:
        route = fleet.route("a", "e")
        assert (len(route), -min(hop.bytes_per_s for hop in route)) == min(found)


@pytest.mark.parametrize(
    ("devices", "home"),
    [
        ([("a", "edge", False), ("b", "device", False), ("c", "cloud", True)], "c"),
        ([("a", "edge", False), ("b", "device", False), ("c", "device", False)], "b"),
        ([("a", "edge", False), ("b", "cloud", False)], "a"),
    ],
)
def test_data_lives_where_the_fleet_says_else_on_the_first_device(
    devices: list[tuple[str, Tier, bool]], home: str
) -> None:
    fleet = Fleet(tuple(Device(name, tier, data=data) for name, tier, data in devices))
    assert fleet.data_device() == home


def test_a_fleet_travels_as_json_under_the_names_of_its_tables() -> None:
    LINE.route("pi", "cloud")  # what is remembered must not travel
    text = msgspec.json.encode(LINE)
    assert msgspec.json.decode(text, type=Fleet) == LINE
    assert set(msgspec.json.decode(text)) == {"device", "link", "medium"}


def test_a_device_that_is_not_in_the_fleet_is_connected_with_nobody() -> None:
    """A device that came back was asked for its routes before the fleet had it again. An error there kept it
    out of the run for good."""
    assert not fleet_of("ab", Link(("a", "b"), 8.0, 8.0)).connected("new", "a")
