"""The radio model: what links deliver, what is measured of it, and the fleet made from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fleet.fleet import Fleet, Link
from weft.fleet.parse import dump_fleet, parse_fleet
from weft.fleet.radio import Radio, fleet_delivery, mean_link, probed, radio_fleet, topology


def test_a_topology_is_a_function_of_its_seed() -> None:
    one, again, other = topology(4), topology(4), topology(5)
    np.testing.assert_array_equal(one.delivery(3.9), again.delivery(3.9))
    np.testing.assert_array_equal(one.measured(3.9), again.measured(3.9))
    assert not np.array_equal(one.positions, other.positions)


def test_delivery_is_the_share_of_packets_above_the_threshold() -> None:
    place = topology(7)
    radio = place.radio
    random = np.random.RandomState(0)
    apart = np.linalg.norm(place.positions[0] - place.positions[1])
    power = -40 - 39 * np.log10(max(apart, 1)) + place.shadow[0, 1]
    received = power + random.normal(0, radio.fading_db, 200_000)
    assert place.delivery(3.9)[0, 1] == pytest.approx((received >= -91.5).mean(), abs=0.005)


@given(st.integers(0, 2000), st.floats(2.5, 4.5), st.floats(0.05, 0.5))
@settings(deadline=None, max_examples=30)
def test_a_larger_exponent_never_delivers_more(seed: int, exponent: float, more: float) -> None:
    place = topology(seed)
    low, high = place.delivery(exponent), place.delivery(exponent + more)
    assert (high <= low + 1e-12).all()
    assert (np.diag(high) == 1).all()


def test_shadowing_is_alike_both_ways_and_not_the_same() -> None:
    shadows = [topology(seed).shadow for seed in range(300)]
    pairs = np.array([(s[0, 1], s[1, 0]) for s in shadows])
    # Variances 9 in common and 2.25 of each direction's own: 9 / 11.25 = 0.8
    assert np.corrcoef(pairs.T)[0, 1] == pytest.approx(0.8, abs=0.06)
    assert pairs.std() == pytest.approx(11.25**0.5, rel=0.1)


def test_measured_ratios_are_fiftieths_near_the_truth() -> None:
    place = topology(3)
    measured = place.measured(3.9)
    np.testing.assert_allclose(measured * 50, np.round(measured * 50), atol=1e-9)
    assert np.abs(measured - place.delivery(3.9)).max() < 0.3
    many = probed(place.delivery(3.9), 100_000, [1])
    np.testing.assert_allclose(many, place.delivery(3.9), atol=0.01)
    assert mean_link(np.array([[1.0, 0.2], [0.4, 1.0]])) == pytest.approx(0.3)


def test_a_fleet_of_radio_devices_has_every_link_with_its_loss_each_way() -> None:
    place = topology(53)
    fleet = radio_fleet(place, 3.9)
    assert len(fleet.devices) == 9
    assert len(fleet.link) == 36
    found = fleet_delivery(fleet)
    np.testing.assert_allclose(found, np.maximum(place.delivery(3.9), 0.001), atol=1e-12)
    assert parse_fleet(dump_fleet(fleet)) == fleet


def test_devices_without_a_link_deliver_nothing_to_each_other() -> None:
    fleet = Fleet(
        radio_fleet(topology(1), 3.9).devices[:3], (Link(("n1", "n2"), 1.0, 1.0, 0, 0.25),)
    )
    expected = [[1.0, 0.75, 0.0], [0.75, 1.0, 0.0], [0.0, 0.0, 1.0]]
    np.testing.assert_allclose(fleet_delivery(fleet), expected)


def test_one_device_is_no_swarm() -> None:
    with pytest.raises(InputError, match="devices = 1"):
        topology(0, Radio(devices=1))
