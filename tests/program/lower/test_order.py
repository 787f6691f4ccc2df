"""Every device knows in which order to compute, and every order leads to the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes
from weft.program.lower.actions import Action, Orders
from weft.program.lower.eager import eager
from weft.program.lower.layout import layout_of
from weft.program.lower.order import orders, staged

MakeLanes = Callable[..., Plan]
AnyLanes = Callable[..., st.SearchStrategy[Plan]]


def spell(found: Orders, device: str) -> str:
    """`F0.1` is the forward pass of piece 0 through segment 1."""
    return " ".join(f"{t.what[0].upper()}{t.piece}.{t.segment}" for t in found[device])


@given(data=st.data())
def test_every_piece_has_its_turn_at_every_segment_once_there_and_once_back(
    any_lanes: AnyLanes, data: st.DataObject
) -> None:
    lanes = layout_of(data.draw(any_lanes()))
    for found in (staged(lanes), eager(lanes)):
        turns = Counter((device, turn) for device, those in found.items() for turn in those)
        assert turns == Counter(
            (piece.devices[g], Action(what, piece.micro, g))
            for piece in lanes.pieces
            for g in range(len(lanes.segments))
            for what in ("forward", "backward")
        )


@given(data=st.data())
def test_no_order_waits_in_a_circle(any_lanes: AnyLanes, data: st.DataObject) -> None:
    """Whoever's next turn has what it needs takes it; in the end nobody has one left."""
    lanes = layout_of(data.draw(any_lanes()))
    last = len(lanes.segments) - 1
    for found in (staged(lanes), eager(lanes)):
        left = {device: list(turns) for device, turns in found.items()}
        done: set[Action] = set()

        def possible(turn: Action, done: set[Action] = done) -> bool:
            if turn.what == "forward":
                return turn.segment == 0 or turn._replace(segment=turn.segment - 1) in done
            if turn.segment == last:
                return turn._replace(what="forward") in done
            return turn._replace(segment=turn.segment + 1) in done

        while any(left.values()):
            ready = [turns for turns in left.values() if turns and possible(turns[0])]
            assert ready, "nobody can go on"
            for turns in ready:
                done.add(turns.pop(0))


@given(data=st.data())
def test_staged_goes_segment_by_segment_there_and_back(
    any_lanes: AnyLanes, data: st.DataObject
) -> None:
    for turns in staged(layout_of(data.draw(any_lanes()))).values():
        there = [turn.segment for turn in turns if turn.what == "forward"]
        back = [turn.segment for turn in turns if turn.what == "backward"]
        assert [turn.what for turn in turns] == ["forward"] * len(there) + ["backward"] * len(back)
        assert there == sorted(there)
        assert back == sorted(back, reverse=True)


def test_staged_does_its_own_first_there_and_others_first_back(make_lanes: MakeLanes) -> None:
    lanes = layout_of(make_lanes((1, "ac"), (1, "cc"), (1, "bc")))
    assert spell(staged(lanes), "c") == "F1.0 F1.1 F0.1 F2.1 B0.1 B2.1 B1.1 B1.0"
    assert spell(staged(lanes), "a") == "F0.0 B0.0"


def test_eager_sends_the_first_gradient_back_before_the_last_piece_is_there(
    make_lanes: MakeLanes,
) -> None:
    """Two pieces of one lane; a takes three seconds for the second, b one for each turn."""
    times = {
        "a": DeviceTimes((3.0, 3.0), (1.0, 1.0), (0.0, 0.0)),
        "b": DeviceTimes((1.0, 1.0), (1.0, 1.0), (0.0, 0.0)),
    }
    lanes = layout_of(make_lanes((2, "ab"), micro_batches=2, mbps=1e6, times=times))
    assert spell(eager(lanes), "b") == "F0.1 B0.1 F1.1 B1.1"
    assert spell(staged(lanes), "b") == "F0.1 F1.1 B0.1 B1.1"


def test_eager_prefers_the_piece_with_the_longest_way_to_the_end(make_lanes: MakeLanes) -> None:
    """Piece 0 comes from a, which needs ten seconds to go back; piece 1 is b's own."""
    slow = DeviceTimes((0.5, 0.5), (10.0, 10.0), (0.0, 0.0))
    quick = DeviceTimes((1.0, 1.0), (1.0, 1.0), (0.0, 0.0))
    times = {"a": slow, "b": quick}
    lanes = layout_of(make_lanes((1, "ab"), (1, "bb"), times=times, mbps=1e6))
    # b begins its own piece at once; then a's is there and goes first, there and back
    assert spell(eager(lanes), "b") == "F1.0 F0.1 B0.1 F1.1 B1.1 B1.0"


@given(data=st.data())
def test_the_plan_says_which_order_and_it_is_the_same_every_time(
    any_lanes: AnyLanes, data: st.DataObject
) -> None:
    lanes = layout_of(data.draw(any_lanes()))
    expected = eager(lanes) if lanes.plan.schedule == "eager" else staged(lanes)
    ordered = orders(lanes)
    assert ordered == orders(layout_of(lanes.plan))
    for device, actions in ordered.items():
        passes = [a for a in actions if a.what in ("forward", "backward")]
        assert passes == expected.get(device, [])


@pytest.mark.parametrize("make", [staged, eager])
def test_a_device_alone_computes_its_pieces(
    make: Callable[..., Orders], make_lanes: MakeLanes
) -> None:
    lanes = layout_of(make_lanes((4, "aaa"), micro_batches=2))
    assert sorted(spell(make(lanes), "a").split()) == ["B0.0", "B1.0", "F0.0", "F1.0"]
