"""Recorded plans and the programs they are lowered to: what must not change is seen not to change.

The plans are read from `golden/`, not decided anew. `write_golden.py` writes them and says when to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from weft.fleet.fleet import Route
from weft.graph.split.lost_values import LostValues
from weft.plans import registry
from weft.plans.plan import Part, Plan
from weft.program.instructions import Instruction
from weft.program.lower.lower import lower
from weft.simulate.price import price

Code = Mapping[str, tuple[Instruction, ...]]
FILES = {path.stem: path for path in sorted((Path(__file__).parent / "golden").glob("*.json"))}


class Golden(msgspec.Struct, frozen=True):
    plan: Plan
    program: dict[str, tuple[Instruction, ...]]


class Written(msgspec.Struct, frozen=True):
    plan: dict[str, msgspec.Raw]  # the text of each field


@cache
def golden(name: str) -> Golden:
    return msgspec.json.decode(FILES[name].read_bytes(), type=Golden)


def plans() -> list[Plan]:
    return [golden(name).plan for name in FILES]


def first_difference(expected: Code, got: Code) -> str:
    """The first instruction that differs, in words; empty where all are equal."""
    if set(expected) != set(got):
        return f"expected code for {sorted(expected)}\n     got code for {sorted(got)}"
    for device, body in expected.items():
        for index in range(max(len(body), len(got[device]))):
            pair = [_show(code, index) for code in (body, got[device])]
            if body[index : index + 1] != got[device][index : index + 1]:
                place = f"device {device}, instruction {index} of {len(body)}"
                return f"{place}:\nexpected {pair[0]}\n     got {pair[1]}"
    return ""


def _show(body: tuple[Instruction, ...], index: int) -> str:
    return msgspec.json.encode(body[index]).decode() if index < len(body) else "the end"


@pytest.mark.parametrize("name", FILES)
def test_a_plan_is_lowered_to_the_recorded_program(name: str) -> None:
    difference = first_difference(golden(name).program, lower(golden(name).plan).code)
    assert not difference, f"{name}: {difference}"


@pytest.mark.parametrize("name", FILES)
def test_a_plan_has_the_recorded_price(name: str) -> None:
    """Seconds of the whole and of each device, and bytes on each channel."""
    plan = golden(name).plan
    expected, got = plan.predicted, price(plan)
    assert expected is not None
    assert got.seconds == pytest.approx(expected.seconds, rel=1e-9)
    assert got.compute_s == pytest.approx(expected.compute_s, rel=1e-9)
    assert got.transfer_bytes == expected.transfer_bytes


@pytest.mark.parametrize("name", FILES)
def test_a_plan_survives_json(name: str) -> None:
    """Every field byte for byte: none is lost, renamed or rounded. A field that is newer than the file has
    its default."""
    plan = golden(name).plan
    found = msgspec.json.decode(msgspec.json.encode(plan), type=dict[str, msgspec.Raw])
    recorded = msgspec.json.decode(FILES[name].read_bytes(), type=Written).plan
    assert [field for field in found if field in recorded] == list(recorded)
    defaults = {field.name: field.default for field in msgspec.structs.fields(Plan)}
    for field in set(found) - set(recorded):
        assert getattr(plan, field) == defaults[field], field
    for field, text in recorded.items():
        assert bytes(found[field]).decode() == bytes(text).decode(), field


def test_every_strategy_is_recorded_in_every_mode_that_it_has() -> None:
    recorded = {(plan.strategy, plan.mode) for plan in plans()}
    registry.load()
    wanted = {(s.name, mode) for s in registry.STRATEGIES.values() for mode in s.modes}
    assert sorted(wanted - recorded) == []


def test_every_instruction_is_recorded() -> None:
    recorded = {type(i) for name in FILES for body in golden(name).program.values() for i in body}
    assert recorded == set(get_args(Instruction))


RECORDED_CODECS = ("none", "fp16", "int8")  # a newer codec changes sizes only
# What a plan chooses by name, and every name.
CHOICES: dict[str, tuple[Callable[[Plan], object], tuple[str, ...]]] = {
    "codec": (lambda p: p.codec, RECORDED_CODECS),
    "input_codec": (lambda p: p.input_codec, RECORDED_CODECS),
    "gradient_codec": (lambda p: p.gradient_codec, RECORDED_CODECS),
    "route": (lambda p: p.route, get_args(Route)),
    "schedule": (lambda p: p.schedule, ("staged", "eager")),
    "optimizer": (lambda p: p.optimizer, ("sgd", "adam", "adamw")),
    "swarm.late": (lambda p: p.swarm and p.swarm.late, get_args(LostValues)),
    "peers.shared": (lambda p: p.peers and p.peers.shared, ("ring", "gossip", "hub")),
    "peers.late": (lambda p: p.peers and p.peers.late, ("wait", "newest")),
    "peers.structures": (lambda p: p.peers and p.peers.structures, ("rounds", "end")),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_is_recorded(choice: str) -> None:
    read, names = CHOICES[choice]
    assert sorted(set(names) - {read(plan) for plan in plans()}) == []


# What else a plan may say, and where its samples may be.
FEATURES: dict[str, Callable[[Plan], object]] = {
    "fewer in flight than micro-batches": lambda p: 1 < p.in_flight < p.micro_batches,
    "ahead": lambda p: p.ahead > 1,
    "stale": lambda p: p.stale and not p.standby,
    "standby": lambda p: p.standby and not p.stale,
    "stale and standby": lambda p: p.stale and p.standby,
    "lanes": lambda p: any(shard.part.samples for shard in p.shards),
    "stream": lambda p: p.stream,
    "rounds with frames in flight": lambda p: p.rounds and p.in_flight > 1,
    "slots": lambda p: p.swarm and p.swarm.slot_ms,
    "copies": lambda p: p.swarm and p.swarm.copies,
    "rescale": lambda p: p.swarm and p.swarm.rescale,
    "source with the first layers": lambda p: _first_layer_of_source(p) == 0,
    "source with later layers only": lambda p: (_first_layer_of_source(p) or 0) > 0,
    "source without layers": lambda p: _first_layer_of_source(p) is None,
    "there and back": lambda p: (
        _whole_layers(p) and len(p.shards) > len({s.device for s in p.shards})
    ),
}


def _first_layer_of_source(plan: Plan) -> int | None:
    return min((s.layers[0] for s in plan.shards if s.device == plan.source), default=None)


def _whole_layers(plan: Plan) -> bool:
    return not plan.rounds and all(shard.part == Part() for shard in plan.shards)


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_of_a_plan_is_recorded(feature: str) -> None:
    assert any(FEATURES[feature](plan) for plan in plans())


def test_a_difference_names_device_index_and_both_instructions() -> None:
    code = golden("stages-there-and-back").program
    assert first_difference(code, dict(code)) == ""
    body = code["b"]
    changed = {**code, "b": (*body[:2], body[0], *body[3:])}
    assert first_difference(code, changed).startswith(f"device b, instruction 2 of {len(body)}:\n")
    shorter = {**code, "b": body[:-1]}
    assert first_difference(code, shorter).endswith("\n     got the end")
    assert "\nexpected the end\n" in first_difference(shorter, code)
    assert first_difference(code, {"a": code["a"]}).endswith("got code for ['a']")
