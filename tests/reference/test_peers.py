"""Peers in one process: what they learn, what they hold after a round, what a slow one costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from weft import data as sets_of_data
from weft.graph.split.classes.calibrate import reestimate_norms
from weft.graph.split.classes.decouple import captured, decouple, score_filters
from weft.graph.split.classes.exchange import harvest, mean, sync_structures
from weft.graph.split.classes.network import DecoupledNet
from weft.papers.decoupled.methods import eight_bits
from weft.reference.peers import (
    PeerTrainer,
    Recipe,
    Run,
    Samples,
    accuracy,
    exchange,
    gather,
    train_peers,
)
from weft.reference.peers_async import barrier_seconds, paced_steps, train_async
from weft.reference.peers_baselines import train_fedavg, train_whole
from weft.strategies.decoupled.topology import FOUR_OF_FIVE, mesh, ring
from weft.zoo.chains import cnn5

RECIPE = Recipe(rounds=2, batch=20)


@pytest.fixture(scope="module")
def digits() -> Samples:
    torch.set_num_threads(1)
    found = sets_of_data.load("digits")
    rows = torch.cat([(found.train_y == c).nonzero()[:40, 0] for c in range(10)])
    rows = rows.view(10, 40).t().reshape(-1)  # classes in turn
    return Samples(found.train_x[rows], found.train_y[rows], found.test_x, found.test_y, public=100)


@pytest.fixture(scope="module")
def dense(digits: Samples) -> torch.nn.Module:
    torch.manual_seed(0)
    net = cnn5((1, 8, 8), 10, width=4)
    public = Samples(digits.public_x, digits.public_y, digits.test_x, digits.test_y)
    return train_whole(net, public, replace(RECIPE, rounds=8, watch=False)).net


@pytest.fixture(scope="module")
def net(dense: torch.nn.Module, digits: Samples) -> DecoupledNet:
    whole = captured(dense, digits.x[:2])
    scores = score_filters(whole, digits.public_x, digits.public_y, last=3)
    parts = decouple(whole, scores, last=3, keep=0.25)
    reestimate_norms(parts, digits.public_x)
    return parts


def some_peers(net: DecoupledNet, data: Samples, recipe: Recipe) -> list[PeerTrainer]:
    rows = torch.arange(len(data.y))
    peers = []
    for p, held in enumerate(FOUR_OF_FIVE):
        own = rows[torch.isin(data.y, torch.tensor(held))]
        peers.append(PeerTrainer(net, held, own, data, recipe, seed=p))
        peers[-1].trainer.train(2, 0.05)
    return peers


def test_peers_together_learn_what_none_of_them_could(net: DecoupledNet, digits: Samples) -> None:
    before = accuracy(net, digits.test_x, digits.test_y)
    run = train_peers(net, digits, FOUR_OF_FIVE, ring(4), replace(RECIPE, rounds=4))
    assert len(run.accuracy) == len(run.local) == 4
    assert run.accuracy[-1] > before + 0.1
    assert run.accuracy[-1] > 0.6  # a peer with five classes: 0.5 at the most
    assert isinstance(run.net, DecoupledNet)
    assert run.net.classes == tuple(range(10))
    assert run.samples == [4 * 10 * 20] * 4  # four rounds over 200 samples each


def test_the_same_seed_gives_the_same_run(net: DecoupledNet, digits: Samples) -> None:
    one, two = (
        train_peers(net, digits, FOUR_OF_FIVE, ring(4), replace(RECIPE, rounds=1)) for _ in "ab"
    )
    for a, b in zip(one.net.state_dict().values(), two.net.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shared", ["ring", "gossip"])
def test_an_exchange_equals_its_definition(net: DecoupledNet, digits: Samples, shared: str) -> None:
    recipe = replace(RECIPE, shared=shared)  # type: ignore[arg-type]
    peers = some_peers(net, digits, recipe)
    held = {p: peer.net.structures() for p, peer in enumerate(peers)}
    layers = [peer.net.shared_state() for peer in peers]
    run = Run(net, sent=[0] * 4)
    exchange(peers, ring(4), recipe, run)
    expected = sync_structures(held, ring(4))
    for p, peer in enumerate(peers):
        for label, state in peer.net.structures().items():
            for key, tensor in state.items():
                assert torch.allclose(tensor, expected[p][label][key], atol=1e-6)
        near = range(4) if shared == "ring" else [p, (p + 1) % 4, (p - 1) % 4]
        middle = mean([layers[q] for q in near])
        for key, tensor in peer.net.shared_state().items():
            assert torch.allclose(tensor, middle[key], atol=1e-6)
    size = sum(t.numel() * 4 for t in layers[0].values())
    common = [len(set(FOUR_OF_FIVE[p]) & set(FOUR_OF_FIVE[(p + 1) % 4])) for p in range(4)]
    structure = sum(t.numel() * 4 for t in held[0][0].values())
    total = size * (2 * 3 if shared == "ring" else 2 * 4) + 2 * structure * sum(common)
    assert sum(run.sent) == total


def test_the_result_is_the_mean_over_all_owners(net: DecoupledNet, digits: Samples) -> None:
    peers = some_peers(net, digits, RECIPE)
    shared, structures = gather(peers, RECIPE)
    naive = harvest({p: peer.net.structures() for p, peer in enumerate(peers)})
    assert all(torch.equal(t, naive[c][k]) for c, s in structures.items() for k, t in s.items())
    key = next(iter(shared))
    middle = torch.stack([peer.net.shared_state()[key] for peer in peers]).mean(0)
    assert torch.allclose(shared[key], middle)


def test_without_exchange_until_the_end_nothing_is_sent(net: DecoupledNet, digits: Samples) -> None:
    run = train_peers(net, digits, FOUR_OF_FIVE, ring(4), replace(RECIPE, sync="end", watch=False))
    assert run.sent == [0] * 4
    assert len(run.accuracy) == 1


def test_split_data_is_half_the_work_of_replicated_data(net: DecoupledNet, digits: Samples) -> None:
    one = replace(RECIPE, rounds=1, watch=False)
    split = train_peers(net, digits, FOUR_OF_FIVE, ring(4), replace(one, deal="split"))
    whole = train_peers(net, digits, FOUR_OF_FIVE, mesh(4), one)
    assert sum(split.samples) == pytest.approx(sum(whole.samples) / 2, rel=0.1)
    equal = train_peers(net, digits, FOUR_OF_FIVE, ring(4), replace(one, steps=3))
    assert equal.samples == [60] * 4


def test_distillation_keeps_logits_nearer_to_the_teacher(
    net: DecoupledNet, dense: torch.nn.Module, digits: Samples
) -> None:
    def apart(distil: float) -> float:
        recipe = replace(RECIPE, distil=distil, calibrated=False, watch=False)
        run = train_peers(net, digits, FOUR_OF_FIVE, ring(4), recipe, dense)
        with torch.no_grad():
            return float((run.net.eval()(digits.x) - dense.eval()(digits.x)).square().mean())

    assert apart(1.0) < apart(0.0)


def test_neighbours_mix_in_what_arrived_and_a_peer_s_own_stays_exact(
    net: DecoupledNet, digits: Samples
) -> None:
    def coarse(tensor: Tensor) -> tuple[Tensor, int]:
        return tensor.sign() * tensor.abs().mean(), tensor.numel()

    recipe = replace(RECIPE, shared="gossip", code=coarse)
    peers = some_peers(net, digits, recipe)
    held = [peer.net.structures() for peer in peers]
    layers = [peer.net.shared_state() for peer in peers]
    run = Run(net, sent=[0] * 4)
    exchange(peers, ring(4), recipe, run)
    for key, tensor in peers[0].net.shared_state().items():
        parts = [layers[0][key], *(coarse(layers[q][key])[0] for q in (1, 3))]
        assert torch.allclose(tensor, torch.stack(parts).mean(0), atol=1e-6)
    for key, tensor in peers[1].net.structure(4).items():  # nobody else has it: nothing is lost
        assert torch.equal(tensor, held[1][4][key])
    for key, tensor in peers[1].net.structure(3).items():
        middle = (held[1][3][key] + coarse(held[0][3][key])[0]) / 2
        assert torch.allclose(tensor, middle, atol=1e-6)
    exact = Run(net, sent=[0] * 4)
    exchange(some_peers(net, digits, RECIPE), ring(4), replace(recipe, code=None), exact)
    assert sum(run.sent) * 4 == sum(exact.sent)


def test_a_ring_s_sums_are_never_coded(net: DecoupledNet, digits: Samples) -> None:
    def nothing(tensor: Tensor) -> tuple[Tensor, int]:
        return torch.zeros_like(tensor), 0

    peers = some_peers(net, digits, RECIPE)
    middle = mean([peer.net.shared_state() for peer in peers])
    exchange(peers, ring(4), replace(RECIPE, code=nothing), Run(net, sent=[0] * 4))
    for key, tensor in peers[2].net.shared_state().items():
        assert torch.allclose(tensor, middle[key], atol=1e-6)


def test_fedavg_averages_by_samples(dense: torch.nn.Module, digits: Samples) -> None:
    run = train_fedavg(dense, digits, FOUR_OF_FIVE, replace(RECIPE, rounds=1))
    assert len(run.accuracy) == 1
    assert run.samples == [200] * 4
    assert not any(
        torch.equal(a, b)
        for (name, a), b in zip(run.net.named_parameters(), dense.parameters(), strict=True)
        if name.endswith("weight")
    )


@pytest.mark.parametrize("plus", [False, True])
def test_a_peer_ten_times_slower_does_not_hold_the_others_up(
    net: DecoupledNet, digits: Samples, plus: bool
) -> None:
    step_s = [1.0, 1.0, 1.0, 10.0]
    recipe = replace(RECIPE, rounds=4, watch=False)
    if plus:
        recipe = replace(recipe, tail=2, weighted=True, code=eight_bits)
    run, clock = train_async(net, digits, FOUR_OF_FIVE, ring(4), recipe, step_s)
    alone = 10.0  # ten minibatches of a second
    assert barrier_seconds(step_s, [10] * 4) == 100.0
    assert all(clock.round_s(p) == pytest.approx(alone) for p in range(3))
    assert len(clock.ends[0]) == 4
    assert clock.round_s(3) <= 2 * alone  # it does fewer minibatches
    assert 0 < run.samples[3] < run.samples[0] / 3
    assert run.accuracy[-1] > accuracy(net, digits.test_x, digits.test_y)


def test_an_absent_peer_s_classes_live_on_in_their_other_owners(
    net: DecoupledNet, digits: Samples
) -> None:
    """A peer so slow that it never ends a round is the same as one that is not there."""
    recipe = replace(RECIPE, rounds=3, watch=False)
    run, clock = train_async(
        net, digits, FOUR_OF_FIVE, ring(4), recipe, [1.0, 1.0, 1.0, 1e6], paced=False
    )
    assert clock.ends[3] == []
    assert run.samples[3] == 0
    assert run.accuracy[-1] > accuracy(net, digits.test_x, digits.test_y)


def test_paced_rounds_leave_fast_peers_alone() -> None:
    assert paced_steps([1.0, 1.0, 1.0, 10.0], [10, 10, 10, 10]) == [10, 10, 10, 2]
    assert paced_steps([1.0, 1.0, 1.0, 1e6], [10] * 4) == [10, 10, 10, 1]
    assert paced_steps([1.0, 1.2], [10, 10]) == [10, 10]
