"""The pipeline's exact period and Algorithm 1. (The period against an event simulation: tests/adapt.)"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.strategies.edgemove.model import (
    Stages,
    Ways,
    approximate_cut,
    middling,
    period,
    split_costs,
    stage_seconds,
    useful_in_flight,
)

LAYERS = (LayerCost("a", 100, 40), LayerCost("b", 200, 20), LayerCost("c", 400, 4))
PROFILE = Profile(
    "three",
    80,
    LAYERS,
    {
        "phone": DeviceTimes((1.0, 2.0, 3.0), (2.0, 4.0, 6.0), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        "edge": DeviceTimes((0.1, 0.2, 0.3), (0.2, 0.4, 0.6), (0.0, 0.0, 0.0)),
    },
)
SECONDS = st.floats(1e-3, 1.0)


def test_costs_of_every_cut_add_up() -> None:
    costs = split_costs(PROFILE, "phone", "edge", batch=10)
    assert costs.layers == 3
    assert costs.client_s == pytest.approx([0, 30.75, 91.5, 182.25])
    assert costs.forward_s == pytest.approx([0, 10.25, 30.5, 60.75])
    assert costs.worker_s == pytest.approx([18, 15, 9, 0])
    assert costs.up_bytes.tolist() == [880, 480, 280, 120]  # with ten labels of 8 bytes
    assert costs.down_bytes.tolist() == [0, 400, 200, 40]
    assert costs.worker_bytes.tolist() == [700, 600, 400, 0]
    assert costs.alone_s == pytest.approx(182.25)


def test_a_codec_shrinks_activations_and_gradients_but_not_the_samples() -> None:
    coded = split_costs(PROFILE, "phone", "edge", batch=10).coded("fp16")
    assert coded.up_bytes.tolist() == [880, 280, 180, 100]  # labels are no activations
    assert coded.down_bytes.tolist() == [0, 200, 100, 20]


def test_stages_are_ways_by_cuts() -> None:
    costs = split_costs(PROFILE, "phone", "edge", batch=10)
    ways = Ways(*map(np.array, ([1.0, 2.0], [100.0, 200.0], [200.0, 400.0], [0.1, 0.3])))
    stages = stage_seconds(costs, ways)
    assert stages.worker_s.tolist() == [[15, 9], [30, 18]]
    assert stages.up_s.tolist() == [[4.8, 2.8], [2.4, 1.4]]
    assert stages.down_s.tolist() == [[2, 1], [1, 0.5]]
    # The slow client is the bottleneck from two in flight on.
    assert period(stages, 1)[0, 0] == pytest.approx(30.75 + 15 + 4.8 + 2 + 0.1)
    assert period(stages, 2)[0, 0] == pytest.approx(30.75)


@settings(deadline=None)
@given(*[SECONDS] * 5)
def test_the_useful_count_is_the_smallest_that_keeps_the_busiest_busy(
    c: float, w: float, u: float, d: float, rtt: float
) -> None:
    stages = Stages(*(np.array([value]) for value in (c, w, u, d, rtt)))
    count = int(useful_in_flight(stages)[0])
    busiest = max(c, w, u, d)
    assert period(stages, count)[0] == pytest.approx(busiest)
    if count > 1:
        assert period(stages, count - 1)[0] > busiest


def test_algorithm_one_balances_the_client_against_worker_and_network() -> None:
    # l = (L t_e + RTT) / (t_d + t_e), t in seconds per layer: (16 * 1 + 40) / (8 + 1)
    assert approximate_cut(16, 0.128, 0.016, 0.040) == round(56 / 9)
    assert approximate_cut(16, 0.128, 0.016, 10.0) == 15  # both sides keep a layer
    assert approximate_cut(16, 0.128, 0.0, 0.0) == 1


def test_a_middling_size_is_the_geometric_mean() -> None:
    assert middling(np.array([1.0, 100.0])) == pytest.approx(10.0)
    assert math.isfinite(middling(np.array([0.0, 100.0])))
