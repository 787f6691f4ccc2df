"""Profiles derived from FLOPs, and profile files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet
from weft.graph.network import Graph, Layer, Loss, Node, Ref, State, Value
from weft.plans.derive import (
    check_profile,
    derive_profile,
    layer_costs,
    load_profile,
    save_profile,
)


def make_graph() -> Graph:
    """Three layers; the first one's whole numbers skip over the second."""
    call = [Node("a", "op", [Ref("x")]), Node("index", "op", [Ref("x")])]
    return Graph(
        name="tiny",
        inputs=["x"],
        output="c",
        layers=[
            Layer("first", call, ["w"], 1e6, 100),
            Layer("second", [Node("b", "op", [Ref("a")])], ["v", "count"], 2e6, 200),
            Layer("third", [Node("c", "op", [Ref("b"), Ref("index")])], [], 4e6, 300),
        ],
        values={
            "x": Value((1, 8), "float32"),
            "a": Value((1, 4), "float32"),
            "index": Value((1, 3), "int64"),
            "b": Value((1, 2), "float32"),
            "c": Value((1, 1), "float32"),
        },
        state={
            "w": State((5, 5), "float32"),
            "v": State((10,), "float32"),
            "count": State((), "int64", trainable=False),
        },
        loss=Loss([], ("c", "target"), "loss", Value((1, 2), "float32"), "mean"),
    )


def test_sizes_come_from_the_graph() -> None:
    first, second, third = layer_costs(make_graph())
    assert [cost.name for cost in (first, second, third)] == ["first", "second", "third"]
    assert (first.param_bytes, second.param_bytes, third.param_bytes) == (100, 40, 0)
    assert (first.output_bytes, second.output_bytes, third.output_bytes) == (40, 32, 4)
    assert (first.backward_bytes, second.backward_bytes) == (16, 8), "whole numbers have none"
    assert third.backward_bytes is None, "all of it is differentiable"
    assert (second.forward_flops, second.saved_bytes) == (2e6, 200)


def test_times_come_from_flops() -> None:
    fleet = Fleet((Device("pi", gflops=1.0), Device("nuc", gflops=4.0)))
    profile = derive_profile(make_graph(), fleet)
    pi, nuc = profile.devices["pi"], profile.devices["nuc"]
    assert pi.forward_s == pytest.approx((1e-3, 2e-3, 4e-3))
    assert pi.backward_s == pytest.approx((1e-3, 4e-3, 8e-3)), "twice, the first layer once"
    assert pi.update_s == pytest.approx((50e-9, 20e-9, 0)), "two operations per parameter"
    assert nuc.forward_s == pytest.approx((0.25e-3, 0.5e-3, 1e-3))
    assert (profile.input_bytes, profile.target_bytes) == (32, 8)
    assert profile.gradient_bytes(1) == 16
    check_profile(profile, fleet)


def test_a_call_costs_what_the_fleet_file_says_so_that_a_minibatch_is_not_cut_into_too_many_pieces() -> (
    None
):
    """Without it 16 pieces of four samples were predicted at 60 ms and took 385."""
    fleet = Fleet((Device("pi", gflops=1.0, call_ms=0.5), Device("nuc", gflops=1.0)))
    profile = derive_profile(make_graph(), fleet)
    pi, nuc = profile.devices["pi"], profile.devices["nuc"]
    assert pi.forward(0, 2, 10) == pytest.approx(nuc.forward(0, 2, 10) + 3 * 0.5e-3)
    assert pi.backward(1, 2, 10) == pytest.approx(nuc.backward(1, 2, 10) + 2 * 0.5e-3)
    assert nuc.forward_call_s == nuc.backward_call_s == (), "as the papers count"


def test_a_device_of_unknown_speed_is_named() -> None:
    fleet = Fleet((Device("pi", gflops=1.0), Device("nuc")))
    with pytest.raises(InputError, match=r"nuc: gflops is missing.*--profile"):
        derive_profile(make_graph(), fleet)


def profile_json() -> dict[str, Any]:
    """A file as `weft profile` writes it and users give it."""
    times = {"forward_s": [1, 2.5], "backward_s": [2, 5], "update_s": [0.1, 0.2]}
    return {
        "model": "alexnet",
        "input_bytes": 49152,
        "layers": [
            {"name": "conv1", "param_bytes": 139776, "output_bytes": 193600},
            {"name": "conv2", "param_bytes": 10, "output_bytes": 20},
        ],
        "devices": {"pi": times, "nuc": dict(times)},
    }


FLEET = Fleet((Device("pi"), Device("nuc")))


def write(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    return path


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, profile_json()))
    check_profile(profile, FLEET)
    assert profile.devices["pi"].forward(0, 1, 2) == 7.0
    assert profile.cut_bytes(1) == profile.gradient_bytes(1) == 193600


def test_the_times_of_codecs_are_kept_in_the_file_and_checked(tmp_path: Path) -> None:
    document = profile_json()
    assert load_profile(write(tmp_path, document)).devices["pi"].codecs == {}  # an older file
    times = {"encode_s": 1e-5, "encode_byte_s": 1e-9, "decode_s": 1e-5, "decode_byte_s": 2e-9}
    document["devices"]["pi"]["codecs"] = {"int8": times}
    profile = load_profile(write(tmp_path, document))
    assert profile.devices["pi"].encode(1000, "int8") == pytest.approx(1.1e-5)
    save_profile(profile, tmp_path / "again.json")
    assert load_profile(tmp_path / "again.json") == profile
    times["decode_s"] = -1.0
    with pytest.raises(InputError, match=r"devices\.pi: codecs\.int8: decode_s"):
        load_profile(write(tmp_path, document))


def test_a_saved_profile_loads_as_itself(tmp_path: Path) -> None:
    profile = derive_profile(make_graph(), Fleet((Device("pi", gflops=0.3),)))
    save_profile(profile, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile


def broken(*keys: str | int, value: object) -> dict[str, Any]:
    """The documented file with one value changed."""
    document = profile_json()
    place: Any = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return document


BAD: list[tuple[object, str]] = [
    ([], "is not a profile"),
    ({"model": "a"}, "input_bytes"),
    (broken("layers", value=[]), r"layers = \[\]"),
    (broken("layers", 0, "param_bytes", value=-1), r"layers\[0\] \(conv1\): param_bytes = -1"),
    (broken("layers", 1, "output_bytes", value="x"), r"layers\[1\]\.output_bytes"),
    (broken("layers", 1, "backward_bytes", value=-2), r"\(conv2\): backward_bytes = -2"),
    (broken("input_bytes", value=-5), "input_bytes = -5"),
    (broken("devices", "pi", "forward_s", value=[1]), r"pi: forward_s has 1 numbers.* be 2"),
    (broken("devices", "pi", "update_s", value=[]), "update_s has 0 numbers"),
    (broken("devices", "nuc", "backward_s", value=[1, -2]), r"nuc: backward_s\[1\] = -2"),
    (broken("devices", "nuc", "forward_call_s", value=[1]), "forward_call_s has 1 numbers"),
]


@pytest.mark.parametrize(("document", "says"), BAD, ids=[says for _, says in BAD])
def test_a_bad_profile_says_what_is_wrong_and_where(
    tmp_path: Path, document: object, says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        load_profile(write(tmp_path, document))
    assert "profile.json" in str(caught.value)


def test_a_file_that_is_missing_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_profile(tmp_path / "none.json")
    (tmp_path / "text.json").write_bytes(b"\xff{")
    with pytest.raises(InputError, match="is not a profile"):
        load_profile(tmp_path / "text.json")


def test_the_devices_are_exactly_the_fleets(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, profile_json()))
    with pytest.raises(InputError, match=r"has no times for tv; .* pi, nuc, tv"):
        check_profile(profile, Fleet((*FLEET.devices, Device("tv"))))
    with pytest.raises(InputError, match="has times for nuc, not in the fleet"):
        check_profile(profile, Fleet((Device("pi"),)))
