"""Lanes tile the batch and the layers, or the plan is refused with a word of where they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.plans.plan import Part, Plan, Shard
from weft.program.lower.layout import layout_of, splits_samples
from weft.program.lower.lower import lower

MakeLanes = Callable[..., Plan]
AnyLanes = Callable[..., st.SearchStrategy[Plan]]


def test_hiertrain_is_three_lanes_and_three_segments(make_lanes: MakeLanes) -> None:
    """s = a with layer 0, l = b with layers 0 to 2, o = c; five layers."""
    lanes = layout_of(make_lanes((3, "acccc"), (2, "ccccc"), (4, "bbbcc")))
    assert lanes.segments == ((0, 0), (1, 2), (3, 4))
    assert [(p.micro, p.first, p.samples, p.devices) for p in lanes.pieces] == [
        (0, 0, 3, ("a", "c", "c")), (1, 3, 2, ("c", "c", "c")), (2, 5, 4, ("b", "b", "c")),
    ]  # fmt: skip
    assert [lanes.holders(g) for g in range(3)] == [("a", "c", "b"), ("c", "b"), ("c",)]
    assert [lanes.root(g) for g in range(3)] == ["c", "c", "c"]
    assert [lanes.samples(g, "c") for g in range(3)] == [2, 5, 9]


def test_streaming_makes_a_segment_of_every_layer_before_the_last_cut(
    make_lanes: MakeLanes,
) -> None:
    plan = make_lanes((3, "acccc"), (2, "ccccc"), (4, "bbbcc"), stream=True)
    assert layout_of(plan).segments == ((0, 0), (1, 1), (2, 2), (3, 4))


def test_who_has_the_loss_adds_up_else_who_has_most_samples(make_lanes: MakeLanes) -> None:
    lanes = layout_of(make_lanes((1, "ab"), (9, "cb")))
    assert lanes.root(0) == "c"
    lanes = layout_of(make_lanes((1, "ab"), (9, "cb"), (1, "bb")))
    assert lanes.root(0) == "b"
    lanes = layout_of(make_lanes((2, "aa"), (3, "bb")))
    assert lanes.root(0) == "b"


def test_the_lanes_may_be_listed_in_any_order(make_lanes: MakeLanes) -> None:
    plan = make_lanes((3, "ab"), (2, "bb"), (1, "cb"))
    turned = msgspec.structs.replace(plan, shards=(*plan.shards[3:], *plan.shards[:3]))
    assert layout_of(turned).pieces == layout_of(plan).pieces


def test_whole_layers_are_no_lanes(make_lanes: MakeLanes) -> None:
    plan = make_lanes((4, "ab"))
    assert splits_samples(plan)
    whole = tuple(Shard(shard.device, shard.layers) for shard in plan.shards)
    assert not splits_samples(msgspec.structs.replace(plan, shards=whole))


@given(data=st.data())
def test_pieces_tile_the_batch_and_go_the_way_of_their_lane(
    any_lanes: AnyLanes, data: st.DataObject
) -> None:
    plan = data.draw(any_lanes())
    lanes = layout_of(plan)
    assert [layer for a, b in lanes.segments for layer in range(a, b + 1)] == list(
        range(len(plan.profile.layers))
    )
    taken = [n for p in lanes.pieces for n in range(p.first, p.first + p.samples)]
    assert taken == list(range(plan.batch))
    assert [p.micro for p in lanes.pieces] == list(range(len(lanes.pieces)))
    assert all(1 <= p.samples <= -(-plan.batch // plan.micro_batches) for p in lanes.pieces)
    for shard in plan.shards:
        assert shard.part.samples is not None
        first, end = shard.part.offset, shard.part.offset + shard.part.samples
        mine = [p for p in lanes.pieces if first <= p.first < end]
        assert sum(p.samples for p in mine) == shard.part.samples
        assert max(p.samples for p in mine) - min(p.samples for p in mine) <= 1
        for g, (a, b) in enumerate(lanes.segments):
            assert b < shard.layers[0] or a > shard.layers[1] or (
                shard.layers[0] <= a and b <= shard.layers[1]
            ), "a segment crosses a cut"  # fmt: skip
            if shard.layers[0] <= a <= shard.layers[1]:
                assert all(p.devices[g] == shard.device for p in mine)


@given(data=st.data())
def test_one_of_its_holders_adds_up_a_segment(any_lanes: AnyLanes, data: st.DataObject) -> None:
    lanes = layout_of(data.draw(any_lanes()))
    ends = {piece.devices[-1] for piece in lanes.pieces}
    for g in range(len(lanes.segments)):
        holders = lanes.holders(g)
        assert set(holders) == {piece.devices[g] for piece in lanes.pieces}
        assert len(holders) == len(set(holders))
        assert lanes.root(g) in holders
        assert lanes.root(g) in ends or not ends & set(holders)
        assert sum(lanes.samples(g, device) for device in holders) == lanes.plan.batch


def shard(device: str, layers: tuple[int, int], samples: int | None, offset: int = 0) -> Shard:
    return Shard(device, layers, Part(samples, offset))


WHOLE = (0, 1)
WRONG: dict[str, tuple[tuple[Shard, ...], str]] = {
    "a gap between lanes": (
        (shard("a", WHOLE, 2), shard("b", WHOLE, 1, 3)), "samples 2 to 3 belong to no lane"),
    "no first sample": ((shard("a", WHOLE, 3, 1),), "samples 0 to 1 belong to no lane"),
    "lanes that overlap": (
        (shard("a", WHOLE, 3), shard("b", WHOLE, 2, 2)), "samples 3 to 2 .* or to two"),
    "two lanes from the same sample on": (
        (shard("a", WHOLE, 2), shard("b", WHOLE, 4)), "samples 2 to 0 .* or to two"),
    "too few samples": ((shard("a", WHOLE, 3),), "have 3 samples; the batch has 4"),
    "too many samples": ((shard("a", WHOLE, 5),), "have 5 samples; the batch has 4"),
    "no samples": (
        (shard("a", WHOLE, 4), shard("b", WHOLE, 0, 4)), "shard b .* needs samples >= 1"),
    "a lane and whole layers": (
        (shard("a", WHOLE, 4), shard("b", WHOLE, None)), "shard b .* every shard needs samples"),
    "samples and rows": (
        (Shard("a", WHOLE, Part(4, 0, rows=(0, 2))),), "shard a .* and nothing else"),
    "no last layer": (
        (shard("a", WHOLE, 2), shard("b", (0, 0), 2, 2)), "no device has layer 1 for samples from 2"),
    "no first layer": (
        (shard("a", WHOLE, 2), shard("b", (1, 1), 2, 2)),
        r"b has layers \[1, 1\] for samples 2 to 4; .* begin at layer 0"),
    "a layer twice": (
        (shard("a", WHOLE, 4), shard("b", (1, 1), 4)),
        r"b has layers \[1, 1\] for samples 0 to 4; .* begin at layer 2"),
    "layers in the wrong order": (
        (shard("b", (1, 1), 4), shard("a", (0, 0), 4)), r"b has layers \[1, 1\] .* at layer 0"),
    "an empty range of layers": ((shard("a", (0, -1), 4),), r"a has layers \[0, -1\]"),
    "a layer too many": ((shard("a", (0, 2), 4),), "plan: .*layer"),
    "a device without times": ((shard("nobody", WHOLE, 4),), "devices has no 'nobody'"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_lanes_are_refused_with_a_word_of_which(make_lanes: MakeLanes, wrong: str) -> None:
    shards, says = WRONG[wrong]
    plan = msgspec.structs.replace(make_lanes((4, "ab")), shards=shards)
    with pytest.raises(InputError, match=says):
        lower(plan)


def test_an_inference_has_no_lanes(make_lanes: MakeLanes) -> None:
    with pytest.raises(InputError, match="shards with samples are for training"):
        lower(make_lanes((2, "ab"), (2, "bb"), mode="infer"))


@given(data=st.data())
def test_a_lane_that_loses_a_sample_or_a_layer_is_refused(
    any_lanes: AnyLanes, data: st.DataObject
) -> None:
    plan: Any = data.draw(any_lanes())
    which = data.draw(st.integers(0, len(plan.shards) - 1))
    old = plan.shards[which]
    if data.draw(st.booleans()):
        new = Shard(old.device, (old.layers[0], old.layers[1] - 1), old.part)
    else:
        new = Shard(old.device, old.layers, Part(old.part.samples + 1, old.part.offset))
    shards = (*plan.shards[:which], new, *plan.shards[which + 1 :])
    with pytest.raises(InputError, match="plan: "):
        lower(msgspec.structs.replace(plan, shards=shards))
