"""The simulated city: a walk, servers with cells, and weather that depends on the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.fleet.city import BLOCK_S, CLOUD, CLOUD_SHARE, PEAK_UP, Day, generated_city, real_city
from weft.fleet.mobility import Walk, stays_s

BOX = (2000.0, 1300.0)


def test_a_walk_goes_at_its_speed_and_stays_in_the_rectangle() -> None:
    where = Walk(BOX, 5.0, seed=3).at(np.arange(3000.0))
    steps = np.hypot(*np.diff(where, axis=0).T)
    assert steps.max() <= 5.0 + 1e-9
    assert np.median(steps) == pytest.approx(5.0)  # shorter only around corners
    assert (where >= 0).all()
    assert (where <= BOX).all()


def test_twice_the_speed_walks_the_same_streets_in_half_the_time() -> None:
    slow, fast = Walk(BOX, 5.0, seed=3), Walk(BOX, 10.0, seed=3)
    seconds = np.arange(500.0)
    assert fast.at(seconds / 2) == pytest.approx(slow.at(seconds))


def test_the_velocity_is_that_of_the_positions() -> None:
    walk = Walk(BOX, 5.0, seed=1)
    moved = (walk.at(np.array([7.001])) - walk.at(np.array([7.0])))[0] / 0.001
    assert walk.velocity(7.0) == pytest.approx(moved, abs=1e-6)


@settings(deadline=None)
@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(-9, 9), st.floats(0.1, 9))
def test_after_its_stay_a_client_that_goes_straight_on_is_on_the_rim(
    x: float, y: float, east: float, north: float
) -> None:
    offset, velocity, radius = np.array([[x, y]]), np.array([east, north]), np.array([2.0])
    left = stays_s(offset, velocity, radius)
    assert np.hypot(*(offset[0] + velocity * left[0])) == pytest.approx(2.0)
    assert stays_s(offset, np.zeros(2), radius)[0] == np.inf


def test_a_generated_city_has_the_density_of_the_real_one() -> None:
    city = generated_city(seed=1)
    assert len(city.names) == 126
    assert city.names[-1] == CLOUD
    assert not city.real
    assert city.box == pytest.approx(BOX, rel=0.05)
    edge = slice(0, 125)
    assert ((city.radius[edge] >= 300) & (city.radius[edge] <= 500)).all()
    assert sorted(set(city.gpu_slowdown[edge])) == [1.0, 1.45]
    assert np.mean(city.gpu_slowdown[edge] == 1.0) == pytest.approx(0.5, abs=0.01)


def test_real_positions_become_metres_with_the_north_up() -> None:
    latlon = np.array([[-37.82, 144.95], [-37.81, 144.95], [-37.82, 144.97]])
    places = real_city(latlon, seed=1).places
    assert places[:3] == pytest.approx(np.array([[0, 0], [0, 1112], [1757, 0]]), rel=0.01, abs=1e-6)


def test_weather_has_the_spread_that_was_asked_for() -> None:
    city = generated_city(seed=1)
    whole = Day(city, Walk(city.box, 5.0, 1), seed=1).until(3 * BLOCK_S - 1)
    edge = slice(0, 125)
    load = whole.slowdown[:, edge] / city.gpu_slowdown[edge] - 1
    assert load.min() == 0.0
    assert load.mean() == pytest.approx(0.27, abs=0.04)  # 0.25, and what is cut off below zero
    rtt = whole.rtt_s[:, edge] - city.rtt_s[edge]
    assert rtt.std() == pytest.approx(0.003, rel=0.15)
    cloud = np.log(whole.up_bytes_per_s[:, -1] / (PEAK_UP * CLOUD_SHARE))
    assert cloud.std() == pytest.approx(0.15, rel=0.25)
    assert (whole.down_bytes_per_s == 2 * whole.up_bytes_per_s).all()
    assert (whole.slowdown[:, -1] == 1.0).all()
    assert 0.09 < whole.rtt_s[0, -1] < 0.18


def test_rates_fall_with_the_distance_and_only_covered_clients_are_in_reach() -> None:
    city = generated_city(seed=1)
    day = Day(city, Walk(city.box, 5.0, 1), seed=1)
    moment, where = day.at(0), day.walk.at(np.zeros(1))[0]
    far = np.hypot(*(city.places[:-1] - where).T) / city.radius[:-1]
    assert (moment.reach[:-1] == (far <= 1)).all()
    assert moment.reach[-1]
    rates = day.until(BLOCK_S - 1).up_bytes_per_s
    near, rim = rates[0, :-1][far < 0.4], rates[0, :-1][(far > 0.9) & (far <= 1)]
    assert near.mean() > 2 * rim.mean()


def test_a_day_is_the_same_in_whatever_order_it_is_asked_for() -> None:
    city = generated_city(seed=1)
    one, two = (Day(city, Walk(city.box, 5.0, 1), seed=9) for _ in range(2))
    late = one.at(2 * BLOCK_S + 5)
    two.at(3)
    assert all((a == b).all() for a, b in zip(late, two.at(2 * BLOCK_S + 5), strict=True))
    assert not (late.slowdown == Day(city, one.walk, seed=8).at(2 * BLOCK_S + 5).slowdown).all()
