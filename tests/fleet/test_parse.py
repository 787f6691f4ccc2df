"""The fleet file: good ones come out as written, bad ones say what is wrong and where."""

from __future__ import annotations

import contextlib
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.fleet.parse import MAX_BYTES, dump_fleet, load_fleet, parse_fleet

EXAMPLES = Path(__file__).parents[2] / "examples" / "fleets"

TWO = """
[[device]]
name = "pi"
[[device]]
name = "nuc"
"""


def link(body: str, between: str = '["pi", "nuc"]') -> str:
    return f"{TWO}[[link]]\nbetween = {between}\n{body}\n"


def medium(body: str) -> str:
    return f'{TWO}[[medium]]\nname = "wifi"\n{body}\n'


def device(body: str) -> str:
    return f'[[device]]\nname = "pi"\n{body}\n'


def test_a_full_file_is_read_as_written() -> None:
    fleet = parse_fleet("""
        [[device]]
        name = "pi"
        tier = "device"
        gflops = 0.9
        memory_mb = 1024
        data = true
        [[device]]
        name = "nuc"
        tier = "edge"
        [[device]]
        name = "tv"
        [[link]]
        between = ["pi", "nuc"]
        up_mbps = 5
        down_mbps = 6.5
        latency_ms = 2
        loss = 0.1
        [[medium]]
        name = "wifi"
        gateway = "nuc"
        members = ["tv", "pi"]
        mbps = 100
    """)
    assert fleet == Fleet(
        (Device("pi", "device", 0.9, 1024.0, True), Device("nuc", "edge"), Device("tv")),
        (Link(("pi", "nuc"), 5.0, 6.5, 2.0, 0.1),),
        (Medium("wifi", "nuc", ("tv", "pi"), 100.0),),
    )


def test_a_link_may_lose_more_one_way_than_the_other() -> None:
    fleet = parse_fleet(link("mbps = 4\nup_loss = 0.25\ndown_loss = 0.5"))
    assert fleet.link[0].losses == (0.25, 0.5)
    assert [hop.loss for hop in fleet.hops()] == [0.25, 0.5]
    assert parse_fleet(link("mbps = 4\nloss = 0.3")).link[0].losses == (0.3, 0.3)


def test_mbps_holds_for_both_directions() -> None:
    assert parse_fleet(link("mbps = 4")).link == (Link(("pi", "nuc"), 4.0, 4.0),)


BAD = {
    "empty": ("", ["no [[device]]", "at least one"]),
    "invalid TOML": ("[[device]]\nname = \n", ["not valid TOML", "line 2"]),
    "unknown table": ("[[devices]]\nname = 'a'\n", ["'devices'", "did you mean device?"]),
    "unknown top-level key": (f"colour = 1\n{TWO}", ["'colour'", "[[medium]]"]),
    "single table": ('[device]\nname = "a"\n', ["device = ", "[[device]]"]),
    "unknown device key": (
        device("gflop = 3"), ["[[device]] 1 (pi)", "gflop = 3", "did you mean gflops?"]),
    "unknown link key": (
        link("mbps = 1\nlatency = 3"), ["[[link]] 1 (pi - nuc)", "latency = 3", "latency_ms"]),
    "unknown medium key": (medium('hub = "pi"'), ["[[medium]] 1 (wifi)", 'hub = "pi"', "gateway"]),
    "no name": ("[[device]]\ngflops = 1\n", ["[[device]] 1:", "name is missing"]),
    "name with a slash": ('[[device]]\nname = "a/b"\n', ['name = "a/b"', "letters, digits"]),
    "name with a wildcard": ('[[device]]\nname = "*"\n', ['name = "*"', "letters, digits"]),
    "name with a line break": ('[[device]]\nname = "a\\n"\n', ["name =", "letters, digits"]),
    "empty name": ('[[device]]\nname = ""\n', ['name = ""', "1 to 64"]),
    "long name": (f'[[device]]\nname = "{"a" * 65}"\n', ["name =", "1 to 64"]),
    "name is a number": ("[[device]]\nname = 5\n", ["name = 5", "letters"]),
    "two devices of one name": (
        TWO + '[[device]]\nname = "pi"\n', ["[[device]] 3 (pi)", "no other device"]),
    "unknown tier": (device('tier = "fog"'), ['tier = "fog"', "device, edge, cloud"]),
    "tier of a wrong type": (device("tier = [1]"), ["tier = [1]", "device, edge, cloud"]),
    "gflops 0": (device("gflops = 0"), ["[[device]] 1 (pi)", "gflops = 0 ", "above 0"]),
    "gflops negative": (device("gflops = -1.5"), ["gflops = -1.5", "above 0"]),
    "gflops is text": (device('gflops = "fast"'), ['gflops = "fast"', "a number above 0"]),
    "gflops is a boolean": (device("gflops = true"), ["gflops = true", "a number above 0"]),
    "gflops infinite": (device("gflops = inf"), ["gflops = inf", "a number above 0"]),
    "gflops not a number": (device("gflops = nan"), ["gflops = nan", "a number above 0"]),
    "gflops beyond floats": (device(f"gflops = 1{'0' * 400}"), ["gflops = 1", "a number above 0"]),
    "memory 0": (device("memory_mb = 0"), ["memory_mb = 0", "above 0"]),
    "data is text": (device('data = "yes"'), ['data = "yes"', "true or false"]),
    "samples without data": (
        device("samples = 5"), ["[[device]] 1 (pi)", "samples = 5", "data = true beside it"]),
    "samples 0": (
        device("data = true\nsamples = 0"), ["samples = 0", "a whole number from 1 up"]),
    "samples and a half": (
        device("data = true\nsamples = 2.5"), ["samples = 2.5", "a whole number from 1 up"]),
    "no bandwidth": (link(""), ["[[link]] 1 (pi - nuc)", "mbps is missing", "down_mbps"]),
    "bandwidth 0": (
        link("mbps = 0"), ["[[link]] 1 (pi - nuc): mbps = 0 is not allowed", "a number above 0"]),
    "bandwidth negative": (link("mbps = -3"), ["mbps = -3", "above 0"]),
    "one direction only": (link("up_mbps = 1"), ["down_mbps is missing", "above 0"]),
    "the other direction only": (link("down_mbps = 1"), ["up_mbps is missing"]),
    "both ways of saying it": (link("mbps = 1\nup_mbps = 2"), ["up_mbps = 2", "left out"]),
    "negative latency": (link("mbps = 1\nlatency_ms = -1"), ["latency_ms = -1", "from 0 up"]),
    "loss of all": (link("mbps = 1\nloss = 1"), ["loss = 1 ", "from 0 up and below 1"]),
    "negative loss": (link("mbps = 1\nloss = -0.1"), ["loss = -0.1", "below 1"]),
    "one direction's loss only": (link("mbps = 1\nup_loss = 0.5"), ["down_loss is missing"]),
    "loss of all one way": (
        link("mbps = 1\nup_loss = 0\ndown_loss = 1"), ["down_loss = 1 ", "below 1"]),
    "both ways of saying loss": (
        link("mbps = 1\nloss = 0.1\nup_loss = 0.2\ndown_loss = 0"), ["up_loss = 0.2", "left out"]),
    "no ends": (TWO + "[[link]]\nmbps = 1\n", ["[[link]] 1", "between is missing"]),
    "ends are text": (link("mbps = 1", '"pi"'), ['between = "pi"', "two device names"]),
    "three ends": (link("mbps = 1", '["pi", "nuc", "pi"]'), ["between =", "two device names"]),
    "unknown end": (
        link("mbps = 1", '["pi", "nuk"]'), ["[[link]] 1", '"nuk"', "did you mean nuc?", "pi, nuc"]),
    "link to itself": (link("mbps = 1", '["pi", "pi"]'), ["two different devices"]),
    "link twice": (
        link("mbps = 1") + '[[link]]\nbetween = ["nuc", "pi"]\nmbps = 2\n',
        ["[[link]] 2 (nuc - pi)", "no other [[link]]"]),
    "no gateway": (medium('members = ["pi"]\nmbps = 1'), ["gateway is missing"]),
    "unknown gateway": (
        medium('gateway = "gw"\nmembers = ["pi"]\nmbps = 1'), ["gateway", '"gw"', "pi, nuc"]),
    "unknown member": (
        medium('gateway = "nuc"\nmembers = ["pie"]\nmbps = 1'), ['"pie"', "did you mean pi?"]),
    "no members": (medium('gateway = "nuc"\nmembers = []\nmbps = 1'), ["members = []"]),
    "gateway as a member": (
        medium('gateway = "nuc"\nmembers = ["nuc"]\nmbps = 1'), ["besides the gateway"]),
    "a member twice": (
        medium('gateway = "nuc"\nmembers = ["pi", "pi"]\nmbps = 1'), ["different devices"]),
    "medium without bandwidth": (
        medium('gateway = "nuc"\nmembers = ["pi"]'), ["[[medium]] 1 (wifi)", "mbps is missing"]),
    "medium named as a device": (
        TWO + '[[medium]]\nname = "pi"\n', ['name = "pi"', "no device"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_place_value_and_rule(case: str) -> None:
    text, parts = BAD[case]
    with pytest.raises(InputError) as caught:
        parse_fleet(text, "my.toml")
    message = str(caught.value)
    assert message.startswith("my.toml")
    for part in parts:
        assert part in message, message


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"nowhere\.toml: No such file"):
        Fleet.load("nowhere.toml")


def test_a_folder_is_not_a_fleet_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="directory"):
        load_fleet(tmp_path)


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.toml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="larger than"):
        load_fleet(path)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        load_fleet(path)


def test_deep_nesting_is_an_input_error() -> None:
    with pytest.raises(InputError):
        parse_fleet("x = " + "[" * 100_000)


@given(st.text(max_size=200))
def test_any_text_parses_or_is_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        parse_fleet(text)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_example_fleets_are_whole(path: Path) -> None:
    fleet = Fleet.load(path)
    assert fleet.data_device()
    for name in fleet.names:
        assert fleet.device(name).gflops, "examples plan without a measured profile"
        assert fleet.path_rate(fleet.data_device(), name) > 0


positive = st.floats(1e-9, 1e12)
quality = {"latency_ms": st.floats(0, 1e6), "loss": st.floats(0, 0.999)}


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    alphabet = string.ascii_letters + string.digits + "_-"
    text = st.text(alphabet, min_size=1, max_size=64)
    names = draw(st.lists(text, min_size=3, max_size=6, unique=True))
    wifi, names = names[0], names[1:]
    owner = draw(st.sampled_from([None, *names]))
    devices = tuple(
        draw(
            st.builds(
                Device,
                st.just(name),
                st.sampled_from(["device", "edge", "cloud"]),
                st.none() | positive,
                st.none() | positive,
                st.just(name == owner),
            )
        )
        for name in names
    )
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    share = st.floats(0, 0.999)
    two_losses = {"latency_ms": quality["latency_ms"], "up_loss": share, "down_loss": share}
    links = tuple(
        draw(
            st.builds(Link, st.just(pair), st.just(up), st.just(up) | positive, **quality)
            | st.builds(Link, st.just(pair), st.just(up), st.just(up) | positive, **two_losses)
        )
        for pair in draw(st.lists(st.sampled_from(pairs), unique=True))
        for up in [draw(positive)]
    )
    members = st.just(tuple(names[1:]))
    media = draw(
        st.tuples()
        | st.tuples(
            st.builds(Medium, st.just(wifi), st.just(names[0]), members, positive, **quality)
        )
    )
    return Fleet(devices, links, media)


@given(fleets())
def test_a_dumped_fleet_parses_back_to_itself(fleet: Fleet) -> None:
    assert parse_fleet(dump_fleet(fleet)) == fleet


def test_an_even_link_is_dumped_with_one_bandwidth() -> None:
    even, odd = parse_fleet(link("mbps = 3")), parse_fleet(link("up_mbps = 3\ndown_mbps = 4"))
    assert "\nmbps = 3.0\n" in dump_fleet(even)
    assert "up_mbps = 3.0\ndown_mbps = 4.0\n" in dump_fleet(odd)
