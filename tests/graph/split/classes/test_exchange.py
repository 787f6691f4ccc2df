"""After a round every tensor is the mean that the definition names, on any graph of peers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.graph.split.classes.exchange import (
    RingPeer,
    flat,
    gossip,
    harvest,
    mean,
    ring_all_reduce,
    sync_structures,
    unflat,
)
from weft.graph.split.classes.network import State
from weft.strategies.decoupled.topology import Neighbours, checked, from_edges, mesh, ring

CLASSES = 5


@st.composite
def graphs(draw: st.DrawFn) -> Neighbours:
    """Any connected graph: a random tree and some more links."""
    peers = draw(st.integers(1, 7))
    tree = [(p, draw(st.integers(0, p - 1))) for p in range(1, peers)]
    pairs = [(a, b) for a in range(peers) for b in range(a)]
    more = draw(st.lists(st.sampled_from(pairs), max_size=6)) if pairs else []
    return from_edges(peers, [*tree, *more])


@st.composite
def held(draw: st.DrawFn) -> tuple[Neighbours, dict[int, dict[int, State]]]:
    """Peers with any classes, each with tensors of its own for them."""
    near = draw(graphs())
    random = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    sets = [draw(st.sets(st.integers(0, CLASSES - 1), min_size=1)) for _ in near]
    sets[0] |= set(range(CLASSES)) - set().union(*sets)
    structures = {
        p: {c: {"w": torch.randn(2, 3, generator=random), "b": torch.randn(2, generator=random)}
            for c in sorted(classes)}
        for p, classes in enumerate(checked([sorted(s) for s in sets], CLASSES))
    }  # fmt: skip
    return near, structures


@settings(deadline=None, max_examples=60)
@given(held())
def test_each_structure_is_the_mean_of_self_and_the_neighbours_that_own_it(
    case: tuple[Neighbours, dict[int, dict[int, State]]],
) -> None:
    near, before = case
    after = sync_structures(before, near)
    for peer, own in before.items():
        assert after[peer].keys() == own.keys()
        for label in own:
            naive = [q for q in before if (q == peer or q in near[peer]) and label in before[q]]
            for key in ("w", "b"):
                expected = sum(before[q][label][key].double() for q in naive) / len(naive)
                assert torch.allclose(after[peer][label][key].double(), expected, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(held(), st.data())
def test_weights_count_samples_seen(
    case: tuple[Neighbours, dict[int, dict[int, State]]], data: st.DataObject
) -> None:
    near, before = case
    seen = {p: {c: float(data.draw(st.integers(0, 9))) for c in own} for p, own in before.items()}
    after = sync_structures(before, near, seen)
    for peer, own in before.items():
        for label, state in own.items():
            naive = [q for q in before if (q == peer or q in near[peer]) and label in before[q]]
            total = sum(seen[q][label] for q in naive)
            expected = state["w"].double()
            if total:
                parts = (before[q][label]["w"].double() * seen[q][label] for q in naive)
                expected = sum(parts, torch.zeros(2, 3).double()) / total
            assert torch.allclose(after[peer][label]["w"].double(), expected, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(held())
def test_the_harvest_is_the_mean_over_all_owners(
    case: tuple[Neighbours, dict[int, dict[int, State]]],
) -> None:
    _, before = case
    whole = harvest(before)
    assert list(whole) == list(range(CLASSES))
    for label, state in whole.items():
        found = [own[label]["w"].double() for own in before.values() if label in own]
        assert torch.allclose(state["w"].double(), sum(found) / len(found), atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 10**6))
def test_ring_all_reduce_is_the_exact_mean_and_moves_2_n_minus_1_over_n_of_the_bytes(
    peers: int, size: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    states = [
        {"a": torch.randn(size, generator=random), "b": torch.randn(2, 2, generator=random)}
        for _ in range(peers)
    ]
    found, sent = ring_all_reduce(states)
    naive = {k: sum(s[k].double() for s in states) / peers for k in ("a", "b")}
    for state in found:
        for key, expected in naive.items():
            assert torch.allclose(state[key].double(), expected, atol=1e-6)
            assert torch.equal(state[key], found[0][key])  # everybody has the same bits
    # 2(n-1)/n of the bytes per peer; where they do not divide by n, in the mean over the peers
    assert sum(sent) == 2 * (peers - 1) * 4 * (size + 4)
    assert max(sent) - min(sent) <= 2 * 4


def test_a_ring_peer_that_gets_a_piece_of_another_size_says_so() -> None:
    peer = RingPeer(1, 3, {"a": torch.zeros(9)})
    with pytest.raises(InputError, match=r"step 0.*before 1, 3 were expected"):
        peer.incoming(0, torch.zeros(4))


@settings(deadline=None, max_examples=40)
@given(graphs(), st.integers(0, 10**6))
def test_gossip_keeps_the_mean_and_brings_peers_nearer(near: Neighbours, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    states = {p: {"a": torch.randn(6, generator=random).double()} for p in near}
    middle = mean(list(states.values()))["a"]
    spread = [sum(float((s["a"] - middle).square().sum()) for s in states.values())]
    for _ in range(300):
        states = gossip(states, near)
        spread.append(sum(float((s["a"] - middle).square().sum()) for s in states.values()))
    assert torch.allclose(mean(list(states.values()))["a"], middle, atol=1e-9)
    assert spread[1] <= spread[0] + 1e-12
    assert spread[-1] < 1e-3


@pytest.mark.parametrize("near", [ring(5), mesh(4)])
def test_gossip_on_a_ring_or_mesh_is_the_mean_of_a_peer_and_its_neighbours(
    near: Neighbours,
) -> None:
    states = {p: {"a": torch.randn(3)} for p in near}
    for peer, state in gossip(states, near).items():
        naive = mean([states[peer], *(states[q] for q in near[peer])])
        assert torch.allclose(state["a"], naive["a"], atol=1e-6)


def test_tensors_survive_flattening() -> None:
    state = {"b": torch.randn(2, 3), "a": torch.randn(4)}
    again = unflat(flat(state), state)
    assert list(again) == ["b", "a"]
    assert all(torch.equal(again[k], state[k]) for k in state)


def test_a_mean_needs_a_weight_for_every_peer() -> None:
    with pytest.raises(InputError, match=r"weights \[1.0\] for 2 peers"):
        mean([{"a": torch.zeros(1)}] * 2, [1.0])
    with pytest.raises(InputError, match="not all of them 0"):
        mean([{"a": torch.zeros(1)}] * 2, [0.0, 0.0])
