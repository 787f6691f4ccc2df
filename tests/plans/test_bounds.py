"""Files from strangers: a file whose work would have no end is refused before the work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weft.errors import InputError
from weft.fleet.parse import load_fleet
from weft.fleet.trace import Trace
from weft.planning.decide import load_plan, simulate_plan
from weft.plans.derive import load_profile
from weft.plans.peers import Peer, Peers
from weft.plans.plan import Plan
from weft.plans.swarm import Message, Swarm
from weft.reading import read_bounded
from weft.runtime.run.inference import _read


def saved(plan: Plan, path: Path, **fields: Any) -> Path:
    plan.save(path)
    document = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**document, **fields}))
    return path


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"micro_batches": 10_000_000}, "micro_batches is 10000000; 1 to 4 are allowed"),
        ({"micro_batches": 10_000_000, "batch": 10_000_000}, "micro_batches times its shards"),
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"batch": 10**12}, "batch"),
        ({"batch": -1}, "batch"),
        ({"in_flight": 10**9}, "in_flight"),
        ({"ahead": 10**9}, "ahead"),
        ({"ahead": 0}, "ahead"),
        ({"stale": 10**9}, "stale"),
    ],
)
def test_a_plan_whose_program_has_no_end_is_refused_before_it_is_lowered(
    make_lanes: Callable[..., Plan], tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    """Seen: a plan with ten million micro-batches ran for 25 s before it was refused."""
    plan = make_lanes((3, "aab"), (1, "bbb"))
    path = saved(plan, tmp_path / "plan.json", **fields)
    with pytest.raises(InputError, match=words):
        simulate_plan(path)


@pytest.mark.parametrize("layers", [[0, 10**7], [-1, 0], [2, 1], [10**18, 10**18]])
def test_a_shard_has_layers_that_the_network_has(
    make_lanes: Callable[..., Plan], tmp_path: Path, layers: list[int]
) -> None:
    """Seen: the last one of a swarm's plan ended the command with "tuple index out of range"."""
    path = tmp_path / "plan.json"
    make_lanes((3, "aab"), (1, "bbb")).save(path)
    document = msgspec.json.decode(path.read_bytes())
    document["shards"][0]["layers"] = layers
    path.write_bytes(msgspec.json.encode(document))
    with pytest.raises(InputError, match=f"layer of {document['shards'][0]['device']}"):
        simulate_plan(path)


def test_swarms_and_peers_have_bounds_too(make_lanes: Callable[..., Plan], tmp_path: Path) -> None:
    swarm = Swarm("a", (Message(1, "a", "b", direct=10**6),), ())
    peers = Peers((Peer("a", (0,), ()),), (), every=10**9)
    alone = Peers((Peer("a", (0,), ()),), ())
    for fields, words in (
        ({"swarm": swarm}, "direct packets"),
        ({"peers": peers}, "peers.every"),
        ({"peers": alone}, "lacks the group that all share"),
    ):
        plan = make_lanes((4, "aab"), **fields)
        plan.save(tmp_path / "plan.json")
        with pytest.raises(InputError, match=words):
            load_plan(tmp_path / "plan.json")


def test_ordinary_plans_are_within_the_bounds(
    make_lanes: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = make_lanes((64, "aab"), (64, "bbb"), micro_batches=128, in_flight=8)
    plan.save(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


def test_no_more_of_a_file_is_read_than_such_a_file_can_have(
    make_lanes: Callable[..., Plan], tmp_path: Path
) -> None:
    """Sparse files of a terabyte: they would fill the memory."""
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    fleet = make_lanes((4, "aab")).fleet
    for read in (load_plan, load_profile, load_fleet, lambda p: Trace.load(p, fleet)):
        with pytest.raises(InputError, match=r"huge.json is larger than the \d+ bytes allowed"):
            read(path)
    with pytest.raises(InputError, match="larger than this machine's memory"):
        _read(path, "--weights")
    with pytest.raises(InputError, match="larger than the 10 bytes"):
        read_bounded(path, 10, "file")


def test_a_fleet_of_very_many_devices_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("".join(f'[[device]]\nname = "d{i}"\n' for i in range(20_000)))
    with pytest.raises(InputError, match=r"20000 .* at most 2000 are allowed"):
        load_fleet(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        (1 << 62).to_bytes(8, "little") + b"{}",
        (50).to_bytes(8, "little") + b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,9]}}',
        (70).to_bytes(8, "little")
        + b'{"w":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,0]}}'[:70],
        b"\x08" + bytes(7) + b"[[[[[[[[",
    ],
)
def test_a_safetensors_file_with_a_false_head_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError, match="not a safetensors file"):
        _read(path, "--weights")
