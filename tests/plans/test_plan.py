"""A plan is plain data: it survives its file, and a file that cannot be right is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from weft.codecs.registry import CODECS
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet
from weft.plans.plan import Plan, Shard
from weft.plans.profile import LayerCost, Profile

KEYS = ("codec", "input_codec", "gradient_codec")
PROFILE = Profile("net", 100, (LayerCost("a", 40, 80),), {})


def plan() -> Plan:
    return Plan(
        strategy="all-device", model="net", batch=4, mode="train", shards=(Shard("pi", (0, 0)),),
        source="pi", fleet=Fleet((Device("pi", "device", 1.0),)), profile=PROFILE,
    )  # fmt: skip


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("key", KEYS)
def test_a_plan_file_carries_every_codec(tmp_path: Path, key: str, codec: str) -> None:
    coded = msgspec.structs.replace(plan(), **{key: codec})
    coded.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == coded


@pytest.mark.parametrize("key", KEYS)
def test_an_unknown_codec_is_refused_in_a_file_and_in_python(tmp_path: Path, key: str) -> None:
    known = r"unknown codec 'zip'; there are: none, fp16, int8, int8-blocks"
    with pytest.raises(InputError, match=known):
        msgspec.structs.replace(plan(), **{key: "zip"})
    fields = json.loads(msgspec.json.encode(plan()))
    (tmp_path / "plan.json").write_text(json.dumps({**fields, key: "zip"}))
    with pytest.raises(InputError, match=rf"plan file .*plan\.json: {known}"):
        Plan.load(tmp_path / "plan.json")
