"""Class sets and topologies: the paper's, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.strategies.decoupled.topology import (
    FOUR_OF_FIVE,
    checked,
    from_edges,
    literal,
    mesh,
    overlapping,
    owners,
    reached,
    ring,
    topology,
)


@settings(deadline=None)
@given(st.integers(2, 100), st.data())
def test_an_overlap_of_n_gives_floor_c_over_n_peers_with_2n_classes_and_the_rest_to_the_last(
    classes: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(1, classes // 2))
    sets = overlapping(classes, overlap)
    assert len(sets) == classes // overlap
    assert all(len(held) == 2 * overlap for held in sets[:-1])
    assert len(sets[-1]) == 2 * overlap + classes % overlap
    assert checked(sets, classes) == sets
    held_by = owners(sets)
    rest = set(range(classes - classes % overlap, classes))
    assert all(len(held_by[c]) == (1 if c in rest else 2) for c in range(classes))
    if len(sets) > 2:
        for peer, held in enumerate(sets):
            after = sets[(peer + 1) % len(sets)]
            assert len(set(held) & set(after)) == overlap


def test_ten_peers_with_two_classes_are_overlap_one() -> None:
    assert overlapping(10, 1)[0] == (0, 1)
    assert overlapping(10, 1)[9] == (9, 0)
    assert len(overlapping(100, 10)) == 10
    assert all(len(held) == 20 for held in overlapping(100, 10))


def test_the_paper_s_four_sets_of_five_leave_no_class_out_and_meet_on_a_ring() -> None:
    assert checked(FOUR_OF_FIVE, 10) == FOUR_OF_FIVE
    for peer, held in enumerate(FOUR_OF_FIVE):
        assert set(held) & set(FOUR_OF_FIVE[(peer + 1) % 4])
    assert literal("9,0,1,2,3/2,3,4,5,6/5,6,7,8,9/8,9,0,1,2", 10) == FOUR_OF_FIVE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,1", r"without an owner: \[2\]"),
        ("0,1/2,2", "peer 1"),
        ("0,1,2/3", "0 to 2"),
        ("0,a", "numbers with commas"),
        ("", "numbers with commas"),
    ],
)
def test_sets_that_cannot_be_right_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        literal(text, 3)


@pytest.mark.parametrize("overlap", [0, 6, -1])
def test_an_overlap_that_no_peer_could_hold_is_refused(overlap: int) -> None:
    with pytest.raises(InputError, match=f"overlap = {overlap}.*1 to 5"):
        overlapping(10, overlap)


def test_rings_and_meshes() -> None:
    assert ring(4) == {0: {1, 3}, 1: {0, 2}, 2: {1, 3}, 3: {2, 0}}
    assert ring(2) == {0: {1}, 1: {0}}
    assert ring(1) == mesh(1) == {0: frozenset()}
    assert all(len(near) == 4 for near in mesh(5).values())
    assert topology("ring", 5) == ring(5)
    assert topology("0-1,1-2", 3) == {0: {1}, 1: {0, 2}, 2: {1}}


@settings(deadline=None)
@given(st.integers(1, 8), st.data())
def test_a_topology_is_one_graph_or_an_error_that_names_who_is_cut_off(
    peers: int, data: st.DataObject
) -> None:
    pairs = [(a, b) for a in range(peers) for b in range(a)]
    edges = data.draw(st.lists(st.sampled_from(pairs))) if pairs else []
    plain = {
        p: {b for a, b in edges if a == p} | {a for a, b in edges if b == p} for p in range(peers)
    }
    apart = sorted(set(range(peers)) - reached(plain, 0))
    if apart:
        with pytest.raises(InputError, match=f"peer 0 cannot reach {', '.join(map(str, apart))};"):
            from_edges(peers, edges)
    else:
        assert from_edges(peers, edges) == plain


@pytest.mark.parametrize("name", ["star", "0-1-2", "0-9,1-2", "0-0,0-1,1-2"])
def test_odd_topologies_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not allowed"):
        topology(name, 3)
