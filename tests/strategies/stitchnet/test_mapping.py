"""Who owns which neuron, how many messages that makes, and which way they go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.fleet.radio import Radio, topology
from weft.plans.delivery import chance
from weft.strategies.stitchnet import topology as stitchnet_topology
from weft.strategies.stitchnet.mapping import (
    MAPPERS,
    average_layers,
    elect,
    mix_mapped,
    near_each_other,
    ranked,
    scores,
    vertical,
)
from weft.strategies.stitchnet.paths import (
    mean_chance,
    messages,
    packets,
    plan_routes,
    wanted,
)
from weft.strategies.stitchnet.topology import PAPER, figures, find_topologies, find_topology

WIDTHS = (64, 64, 64, 64)
PLACE = find_topology()
PRR = PLACE.measured(3.9)


@pytest.mark.parametrize(
    ("mapper", "expected"),
    [
        ("vertical", 30),
        ("mix-mapped", 141),
        ("mix-mapped-random", 141),
        ("mix-mapped-reverse", 141),
        ("average-layers", 147),
        ("horizontal", 360),
        ("random-units", 360),
    ],
)
@pytest.mark.parametrize("width", [64, 128])
def test_messages_of_a_batch_are_counted_exactly(mapper: str, expected: int, width: int) -> None:
    for place in find_topologies(3):
        spread = MAPPERS[mapper](place.measured(3.9), (width,) * 4, None, 1)
        for path in ("direct", "coordinator", "subpath"):
            routes = plan_routes(path, place.measured(3.9), spread)  # type: ignore[arg-type]
            assert messages(routes) == expected
        assert spread.counts().sum(axis=1)[list(spread.workers)].tolist() == [width // 2] * 8


@pytest.mark.parametrize("mapper", sorted(MAPPERS))
@given(
    st.integers(3, 12),
    st.lists(st.integers(16, 60), min_size=2, max_size=5),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=15)
def test_every_neuron_has_one_owner_and_the_coordinator_none(
    mapper: str, devices: int, widths: list[int], seed: int
) -> None:
    prr = topology(seed, Radio(devices=devices)).measured(3.9)
    spread = MAPPERS[mapper](prr, widths, None, seed)
    assert spread.widths == tuple(widths)
    assert spread.coordinator == elect(prr)
    assert (spread.counts().sum(axis=0) == widths).all()
    assert spread.counts()[spread.coordinator].sum() == 0


def test_the_score_is_the_mean_product_both_ways() -> None:
    prr = np.array([[1.0, 0.5, 0.2], [0.4, 1.0, 0.9], [0.1, 0.8, 1.0]])
    np.testing.assert_allclose(scores(prr), [(0.2 + 0.02) / 2, (0.2 + 0.72) / 2, (0.02 + 0.72) / 2])
    assert elect(prr) == 1
    assert ranked(prr, 1) == [2, 0]


def test_mix_mapped_puts_the_better_half_on_every_layer_and_the_rest_on_one() -> None:
    spread = mix_mapped(PRR, WIDTHS)
    better = ranked(PRR, spread.coordinator)[:4]
    assert sorted(better) == list(spread.horizontal)
    counts = spread.counts()
    assert counts[list(spread.horizontal)].tolist() == [[8, 8, 8, 8]] * 4
    assert sorted(counts[list(spread.vertical)].tolist(), reverse=True) == (32 * np.eye(4)).tolist()
    assert (counts > 0).sum() / len(spread.workers) == 2.5
    reverse = mix_mapped(PRR, WIDTHS, order="reverse")
    assert not set(reverse.horizontal) & set(spread.horizontal)


def test_vertical_devices_stand_next_to_those_they_hear() -> None:
    prr = np.full((5, 5), 0.1) + 0.9 * np.eye(5)
    for a, b in ((0, 3), (3, 1), (1, 4), (4, 2), (2, 0)):
        prr[a, b] = prr[b, a] = 0.9
    assert near_each_other(prr, 0, [1, 2, 3, 4]) in ((3, 1, 4, 2), (2, 4, 1, 3))


def test_the_control_has_two_or_three_layers_a_device() -> None:
    layers = (average_layers(PRR, WIDTHS).counts() > 0).sum(axis=1)
    assert sorted(layers.tolist()) == [0, 2, 2, 2, 2, 3, 3, 3, 3]
    assert (vertical(PRR, WIDTHS).counts() > 0).sum(axis=1).max() == 1


def test_a_relay_is_taken_where_it_is_likelier() -> None:
    spread = mix_mapped(PRR, WIDTHS)
    c = spread.coordinator
    routes = plan_routes("subpath", PRR, spread)
    for _, s, d in np.argwhere(wanted(spread)):
        relay = c not in (s, d) and PRR[s, c] * PRR[c, d] > PRR[s, d]
        assert (routes.relayed[:, s, d] > 0).any() == relay
    assert packets(routes) == messages(routes) + routes.relayed.sum()
    better = chance(routes, PRR)
    for path in ("direct", "coordinator"):
        assert (better >= chance(plan_routes(path, PRR, spread), PRR) - 1e-12).all()  # type: ignore[arg-type]


def test_the_five_figures_come_out_on_topologies_found_by_search() -> None:
    found = find_topologies(6)
    assert len({place.seed for place in found}) == 6
    for place in found:
        ours = figures(place)
        for name in PAPER.__struct_fields__:
            assert getattr(ours, name) == pytest.approx(getattr(PAPER, name), abs=0.03)


def test_a_mean_over_messages_counts_what_a_device_keeps() -> None:
    spread = mix_mapped(PRR, WIDTHS)
    routes = plan_routes("direct", PRR, spread)
    nothing = np.eye(9)
    kept, all_of_it = (
        wanted(spread, itself=True).sum() - wanted(spread).sum(),
        wanted(spread, True).sum(),
    )
    assert mean_chance(routes, nothing, spread) == pytest.approx(kept / all_of_it)


def test_a_search_that_finds_nothing_says_what_it_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stitchnet_topology, "MOST_SEEDS", 20)
    with pytest.raises(WeftError, match=r"only 0 of 2 topologies .*seeds 100 to 119"):
        find_topologies(2, first_seed=100, tolerance=0.001)
