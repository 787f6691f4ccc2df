"""stitchnet+: packets where they deliver most; recovery after devices are lost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fleet.radio import Radio, topology
from weft.plans.delivery import Routes
from weft.strategies.stitchnet import search as stitchnet_search
from weft.strategies.stitchnet.budget import WORTHWHILE, best_relays, delivered, spend, value, worth
from weft.strategies.stitchnet.importance import clone, drop, failure_order, importance
from weft.strategies.stitchnet.mapping import NOBODY, Spread, mix_mapped, random_units
from weft.strategies.stitchnet.paths import messages, packets, plan_routes, slots
from weft.strategies.stitchnet.search import ENOUGH, OVERLOADS, best_spread, dealt, recover
from weft.strategies.stitchnet.topology import find_topologies

WIDTHS = (64, 64, 64, 64)
PLACES = find_topologies(6)


def norms(seed: int = 0) -> list[np.ndarray]:
    random = np.random.RandomState(seed)
    return importance([random.normal(size=(64, 10)) for _ in range(4)])


def test_every_boundary_is_worth_one() -> None:
    spread = mix_mapped(PLACES[0].measured(4.0), WIDTHS)
    np.testing.assert_allclose(worth(spread).sum(axis=(1, 2)), np.ones(slots(spread)))


def test_the_best_relay_is_found() -> None:
    prr = PLACES[0].measured(4.0)
    via, likely = best_relays(prr)
    for s, d in itertools.permutations(range(9), 2):
        ways = {v: prr[s, v] * prr[v, d] for v in range(9) if v not in (s, d)}
        assert likely[s, d] == max(ways.values())
        assert ways[int(via[s, d])] == likely[s, d]


@given(st.integers(0, 500), st.integers(1, 8))
@settings(deadline=None, max_examples=25)
def test_packets_are_spent_as_well_as_by_trying_all_ways(seed: int, budget: int) -> None:
    """One layer on two workers, direct links only: every division of the budget is tried."""
    prr = np.clip(topology(seed, Radio(devices=3, side=25.0)).measured(3.9), 0.05, 0.9)
    spread = Spread(3, 0, (np.array([1, 1, 1, 2]),))
    prr[1, 2] = prr[2, 1] = 0.0  # so no relay is of use
    found = spend(spread, prr, budget)
    assert packets(found) <= budget
    asked = [(0, 0, 1), (0, 0, 2), (1, 1, 0), (1, 2, 0), (2, 0, 1), (2, 0, 2)]
    best = 0.0
    for times in itertools.product(range(budget + 1), repeat=len(asked)):
        if sum(times) == budget:
            direct = np.zeros((3, 3, 3), dtype=np.int64)
            for place, count in zip(asked, times, strict=True):
                direct[place] = count
            tried = Routes(direct, 0 * direct, found.via)
            best = max(best, float(delivered(spread, tried, prr).sum()))
    assert delivered(spread, found, prr).sum() >= best - WORTHWHILE * budget


def test_it_delivers_more_weight_than_mix_mapped_for_no_more_packets() -> None:
    for place in PLACES:
        prr, true = place.measured(4.0), place.delivery(4.0)
        spread = mix_mapped(prr, WIDTHS)
        routes = plan_routes("subpath", prr, spread)
        found = best_spread(prr, WIDTHS, packets(routes))
        assert packets(found.routes) <= packets(routes)
        assert value(found.spread, found.routes, true) > value(spread, routes, true) + 0.1
        assert found.spread.counts().sum(axis=1).max() == 32, "every worker carries its share"


def test_unequal_devices_carry_unequal_shares() -> None:
    prr = PLACES[0].measured(4.0)
    capacity = [1.0, 2.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0]
    found = best_spread(prr, WIDTHS, 200, capacity=capacity)
    workers = [d for d in range(9) if d != found.spread.coordinator]
    total = sum(capacity[d] for d in workers)
    for d in workers:
        assert found.spread.counts()[d].sum() == pytest.approx(256 * capacity[d] / total, abs=1)
    assert [o.tolist() for o in dealt((3, 3), [1, 0], [2, 1])] == [[1, 1, 0], [0, 0, 0]]


def test_a_small_budget_is_kept_and_a_large_one_not_wasted() -> None:
    prr = PLACES[0].measured(4.0)
    small, large = best_spread(prr, WIDTHS, 20), best_spread(prr, WIDTHS, 5000)
    assert packets(small.routes) <= 20
    assert packets(large.routes) < 400
    assert messages(large.routes) == 30
    assert large.value > 0.99


def test_after_failures_every_neuron_that_fits_has_a_holder_that_is_heard() -> None:
    prr = PLACES[0].measured(4.0)
    found = best_spread(prr, WIDTHS, 200)
    lost: list[int] = []
    for failed in failure_order(prr, found.spread, "best")[:-1]:
        lost.append(failed)
        after = recover(found.spread, prr, 200, lost, norms())
        counts = after.spread.counts()
        assert counts[lost].sum() == 0
        most = counts.sum(axis=1).max()
        assert most <= OVERLOADS[-1] * 32 + 4
        assert most <= OVERLOADS[0] * 32 + 4 or after.value >= ENOUGH or len(lost) > 3
        assert packets(after.routes) <= 200
        relays = after.routes.via[(after.routes.relayed > 0).any(axis=0)]
        assert not set(relays.tolist()) & set(lost)
        assert counts.sum() <= 256
        if len(lost) <= 4:
            assert counts.sum() == 256
        assert (counts.sum(axis=0) > 0).all(), "every layer has a neuron left"


def test_what_does_not_fit_is_the_least_important(monkeypatch: pytest.MonkeyPatch) -> None:
    prr = PLACES[0].measured(4.0)
    found = best_spread(prr, WIDTHS, 200)
    lost = failure_order(prr, found.spread, "worst")[:7]
    monkeypatch.setattr(stitchnet_search, "OVERLOADS", (1.0,))
    after, weights = recover(found.spread, prr, 200, lost, norms()), norms()
    for owners, norm in zip(after.spread.owners, weights, strict=True):
        assert norm[owners >= 0].min() >= norm[owners == NOBODY].max()


def test_devices_that_are_not_heard_get_no_neurons_after_failures() -> None:
    """Two deaf survivors once got two layers, and the accuracy fell to that of guessing."""
    prr = PLACES[0].measured(4.0)
    found = best_spread(prr, WIDTHS, 200)
    c = found.spread.coordinator
    left = [d for d in range(9) if d != c][:2]
    lost = [d for d in range(9) if d != c and d not in left]
    deaf = prr.copy()
    deaf[left] = deaf[:, left] = 0.0
    np.fill_diagonal(deaf, 1.0)
    after = recover(found.spread, deaf, 200, lost, norms())
    assert after.spread.workers == (c,)
    assert after.spread.counts()[c].tolist() == [32, 32, 32, 32], "four times its share"
    assert messages(after.routes) == 0


def test_horizontal_devices_are_cloned_whole_and_vertical_ones_by_their_best_quarter() -> None:
    prr = PLACES[0].measured(3.9)
    spread, weights = mix_mapped(prr, WIDTHS), norms()
    flat, tall = spread.horizontal[0], spread.vertical[1]
    after = clone(spread, flat, weights, seed=1)
    assert after.counts().sum() == 256
    assert after.counts()[flat].sum() == 0
    after = clone(spread, tall, weights, seed=1)
    assert after.counts().sum() == 256 - 24
    layer = int(spread.counts()[tall].argmax())
    units = spread.units(tall, layer)
    cloned = [u for u in units if after.owners[layer][u] != NOBODY]
    assert len(cloned) == 8
    kept = weights[layer][cloned].min()
    assert kept >= max(weights[layer][u] for u in units if u not in cloned)
    assert tall not in after.workers
    assert after.vertical == tuple(d for d in spread.vertical if d != tall)


def test_clones_go_to_survivors_until_none_is_left() -> None:
    prr = PLACES[1].measured(3.9)
    spread = random_units(prr, WIDTHS)
    for failed in failure_order(prr, spread, "worst"):
        others = set(spread.workers) - {failed}
        spread = clone(spread, failed, norms(), seed=2)
        assert set(spread.workers) <= others
    assert spread.workers == ()
    assert drop(mix_mapped(prr, WIDTHS), 3).counts()[3].sum() == 0


def test_failures_go_by_the_connection_to_the_coordinator() -> None:
    prr = PLACES[0].measured(3.9)
    spread = mix_mapped(prr, WIDTHS)
    worst = failure_order(prr, spread, "worst")
    c = spread.coordinator
    quality = [prr[d, c] * prr[c, d] for d in worst]
    assert quality == sorted(quality)
    assert failure_order(prr, spread, "best") == worst[::-1]


def test_one_device_is_refused() -> None:
    with pytest.raises(InputError, match="there are 1 devices"):
        best_spread(np.ones((1, 1)), WIDTHS, 10)
