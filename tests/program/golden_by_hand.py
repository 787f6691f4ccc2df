"""Golden plans that no strategy makes today, but that can be lowered: shapes of stages and of lanes.

    _stages("aabbaa")                       layers 0-1 on a, 2-3 on b, 4-5 on a
    _lanes((6, "aabbcc"), (2, "bbbbcc"))    six samples over a, b and c, two over b and c

The samples are at device a. A lane has the same letters as a stage plan, so that both can be compared.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from weft.fleet.fleet import Device, Fleet, Link
from weft.fleet.owners import Owner
from weft.plans.plan import Part, Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile

# Between b and d there is no link: what they send each other takes two hops.
FLEET = Fleet(
    tuple(Device(name, data=name == "a") for name in "abcd"),
    (
        Link(("a", "b"), 20.0, 30.0, 1.0),
        Link(("a", "c"), 10.0, 10.0, 5.0),
        Link(("b", "c"), 50.0, 40.0, 0.5),
        Link(("c", "d"), 25.0, 25.0, 2.0),
        Link(("a", "d"), 5.0, 5.0, 8.0),
    ),
)
SPEED = {"a": 1.0, "b": 3.0, "c": 5.0, "d": 4.0}


def _profile(layers: int) -> Profile:
    """Maps shrink and weights grow with depth; over the second cut only half is differentiable."""
    costs = tuple(
        LayerCost(
            f"layer{n}", 4000 * (n + 1), 6400 // (n + 1), 1e6, saved_bytes=9600 // (n + 1),
            backward_bytes=1600 if n == 1 else None,
        )
        for n in range(layers)
    )  # fmt: skip
    base = DeviceTimes(
        forward_s=tuple(0.004 / (n + 2) for n in range(layers)),
        backward_s=tuple(0.008 / (n + 2) for n in range(layers)),
        update_s=tuple(0.0005 * (n + 1) for n in range(layers)),
        forward_call_s=(0.001,) * layers,
        backward_call_s=(0.002,) * layers,
    )
    return Profile("toy", 3136, costs, {name: base.scaled(1 / by) for name, by in SPEED.items()})


def _plan(layers: int, batch: int, shards: tuple[Shard, ...], **fields: Any) -> Plan:
    settings: dict[str, Any] = {"mode": "train", "source": "a", **fields}
    return Plan(
        strategy="by hand", model="toy", batch=batch, shards=shards, fleet=FLEET,
        profile=_profile(layers), **settings,
    )  # fmt: skip


def _shards(owners: str, part: Part | None = None) -> tuple[Shard, ...]:
    """Neighbouring layers of one owner are one shard."""
    runs = [list(run) for _, run in groupby(range(len(owners)), key=owners.__getitem__)]
    return tuple(Shard(owners[run[0]], (run[0], run[-1]), part or Part()) for run in runs)


def _stages(owners: str, batch: int = 8, **fields: Any) -> Plan:
    return _plan(len(owners), batch, _shards(owners), **fields)


def _lanes(*lanes: tuple[int, str], **fields: Any) -> Plan:
    shards: list[Shard] = []
    offset = 0
    for samples, owners in lanes:
        shards += _shards(owners, Part(samples, offset))
        offset += samples
    return _plan(len(lanes[0][1]), offset, tuple(shards), **fields)


def by_hand() -> dict[str, Plan]:
    return {**_stage_plans(), **_stale_plans(), **_single_lanes(), **_several_lanes()}


def _stage_plans() -> dict[str, Plan]:
    coded = {"codec": "int8", "input_codec": "fp16"}
    return {
        "stages-four-mb8-flight8": _stages("aabbcd", 16, micro_batches=8, in_flight=8),
        "stages-source-last-mb4-flight3": _stages("bbccaa", micro_batches=4, in_flight=3),
        "stages-source-middle-mb3-flight2": _stages(
            "bbaacc", micro_batches=3, in_flight=2, **coded
        ),
        "stages-source-none-mb4-ahead3": _stages("bbccdd", micro_batches=4, in_flight=4, ahead=3),
        "stages-source-none-ahead1-back": _stages("bbccbb", **coded),
        "stages-three-mb4-clip": _stages(
            "aabbcc", micro_batches=4, in_flight=2, optimizer="adam clip"
        ),
        "lanes-three-clip": _lanes(
            (4, "aabbcc"), (2, "cccccc"), (2, "bbbbcc"), optimizer="sgd clip"
        ),
        "stages-there-and-back": _stages("aabbaa", codec="fp16"),
        "stages-there-and-back-twice": _stages("abaca", route="store_and_forward"),
        "stages-source-in-between": _stages("bbaabb", ahead=2),
        "stages-infer-there-and-back": _stages("aabbcaa", 4, mode="infer"),
        "stages-infer-source-middle-mb4-flight2": _stages(
            "bbaacc", mode="infer", micro_batches=4, in_flight=2, **coded
        ),
        "stages-infer-source-last-mb3-flight3": _stages(
            "bbccaa", 7, mode="infer", micro_batches=3, in_flight=3
        ),
        "stages-infer-source-none-mb4-flight1": _stages(
            "bbdd", mode="infer", micro_batches=4, route="store_and_forward"
        ),
    }


def _stale_plans() -> dict[str, Plan]:
    return {
        "stale2-three-stages": _stages("aabbcc", stale=2),
        "stale3-four-stages-int8": _stages("abbcdd", stale=3, codec="int8"),
        "stale1-there-and-back": _stages("aabbaa", stale=1),
        "stale4-there-and-back-fp16": _stages("abbbba", stale=4, codec="fp16"),
        "stale1-standby": _stages("aabbbb", stale=1, standby=(Shard("c", (2, 5)),)),
        "stale2-there-and-back-standby": _stages("aabba", stale=2, standby=(Shard("c", (2, 3)),)),
        "standby-two-of-three-adam": _stages(
            "aabbcc", standby=(Shard("c", (2, 3)), Shard("d", (4, 5))), optimizer="adam"
        ),
        "standby-mb4": _stages(
            "bbbccc", micro_batches=4, in_flight=2, ahead=2, standby=(Shard("d", (0, 2)),)
        ),
    }


def _single_lanes() -> dict[str, Plan]:
    """One way for all samples: what a plan of stages could say as well."""
    return {
        "lane-source-first": _lanes((8, "aabbcc"), micro_batches=4),
        "lane-source-first-eager": _lanes((8, "aabbcc"), micro_batches=4, schedule="eager"),
        "lane-source-last-eager": _lanes((8, "bbccaa"), micro_batches=4, schedule="eager"),
        "lane-source-last-staged": _lanes((8, "bbccaa"), micro_batches=3, codec="int8"),
        "lane-source-none-ahead2": _lanes((8, "bbccdd"), micro_batches=4, ahead=2),
        "lane-there-and-back-mb2": _lanes((8, "aabbaa"), micro_batches=2, schedule="eager"),
    }


def _several_lanes() -> dict[str, Plan]:
    three = (9, "aabbcc"), (5, "cccccc"), (6, "bbbbcc")
    coded = {"codec": "fp16", "input_codec": "int8", "gradient_codec": "int8"}
    return {
        "lanes-three-staged": _lanes(*three),
        "lanes-three-staged-mb5-stream": _lanes(*three, micro_batches=5, stream=True),
        "lanes-three-eager-mb5": _lanes(*three, micro_batches=5, schedule="eager", **coded),
        "lanes-three-eager-mb20-stream": _lanes(
            *three, micro_batches=20, schedule="eager", stream=True, ahead=2, gradient_codec="fp16"
        ),
        "lanes-data-parallel-source-none": _lanes(
            (4, "bbb"), (3, "ccc"), (5, "ddd"), ahead=2, micro_batches=4, gradient_codec="fp16"
        ),
        "lanes-two-ends": _lanes((4, "aabb"), (4, "bbaa"), micro_batches=4, schedule="eager"),
        "lanes-there-and-back": _lanes((5, "abba"), (3, "bccb"), stream=True),
        "lanes-source-later-store": _lanes(
            (4, "bbad"), (4, "ddda"), micro_batches=2, schedule="eager", route="store_and_forward"
        ),
        "lanes-owners-eager": _lanes(
            (4, "bbcc"),
            (2, "cccc"),
            (6, "bbbc"),
            owners=(Owner("a", 6), Owner("b", 6)),
            micro_batches=4,
            schedule="eager",
            ahead=2,
        ),
        "lanes-norms": _lanes(
            *three, micro_batches=5, layering="norms", norms=((0, 56), (2, 136), (5, 264))
        ),
        "lanes-one-sample-each-adamw": _lanes(
            (1, "abcd"), (1, "bbcd"), (1, "dddd"), schedule="eager", optimizer="adamw"
        ),
    }
