"""The closed form of the pipeline equals an event simulation, and settles at the exact period."""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.strategies.edgemove.model import Stages, Variation, noisy_period, period
from weft.strategies.edgemove.online.pipeline import (
    MARGIN_S,
    VARIATION,
    Noise,
    Pipeline,
    Road,
    draw_noise,
)

SECONDS = st.floats(0.001, 1.0)
TIMES = st.tuples(*[SECONDS] * 5, st.floats(0, 1.0))  # F, B, U, W, D, RTT


def steady(count: int) -> Noise:
    return Noise(*([1.0] * count for _ in range(4)))


def pipeline(
    times: tuple[float, ...], in_flight: int, noise: Noise, leaves_s: float = math.inf
) -> Pipeline:
    f, b, u, w, d, rtt = times

    def lay(until_s: float) -> Road:
        seconds = int(until_s) + MARGIN_S
        return Road(*([value] * seconds for value in (u, w, d, rtt / 2)), leaves_s)

    return Pipeline(f, b, in_flight, noise, 0.0, lay)


def event_simulation(times: tuple[float, ...], in_flight: int, noise: Noise) -> list[float]:
    """Naive: four machines with queues, jobs that wake each other, nothing known in advance."""
    f, b, u, w, d, rtt = times
    count = len(noise.client)
    events: list[tuple[float, int, str, int]] = []
    queues: dict[str, deque[int]] = {name: deque() for name in ("up", "work", "down")}
    busy = dict.fromkeys(("client", "up", "work", "down"), False)
    arrived: set[int] = set()
    ends = [0.0] * count
    order = deque(("F", n) for n in range(min(in_flight, count)))
    for n in range(count):
        order.append(("B", n))
        if n + in_flight < count:
            order.append(("F", n + in_flight))
    ticket = 0

    def at(time: float, what: str, n: int) -> None:
        nonlocal ticket
        ticket += 1
        heappush(events, (time, ticket, what, n))

    def start(now: float) -> None:
        if not busy["client"] and order:
            word, n = order[0]
            if word == "F" or n in arrived:
                order.popleft()
                busy["client"] = True
                at(now + (f if word == "F" else b) * noise.client[n], f"{word} done", n)
        for name, seconds, factors in (
            ("up", u, noise.up),
            ("work", w, noise.worker),
            ("down", d, noise.down),
        ):
            if queues[name] and not busy[name]:
                n = queues[name].popleft()
                busy[name] = True
                at(now + seconds * factors[n], f"{name} done", n)

    start(0.0)
    while events:
        now, _, what, n = heappop(events)
        if what in ("F done", "B done"):
            busy["client"] = False
            if what == "F done":
                queues["up"].append(n)
            else:
                ends[n] = now
        elif what == "up done":
            busy["up"] = False
            at(now + rtt / 2, "there", n)
        elif what == "there":
            queues["work"].append(n)
        elif what == "work done":
            busy["work"] = False
            queues["down"].append(n)
        elif what == "down done":
            busy["down"] = False
            at(now + rtt / 2, "back", n)
        else:
            arrived.add(n)
        start(now)
    return ends


@settings(deadline=None, max_examples=80)
@given(TIMES, st.integers(1, 8), st.integers(0, 5))
def test_it_equals_an_event_simulation_minibatch_by_minibatch(
    times: tuple[float, ...], in_flight: int, seed: int
) -> None:
    noise = draw_noise(np.random.default_rng(seed), 40)
    ends: list[float] = []
    pipe = pipeline(times, in_flight, noise)
    # In pieces, and the last ones by a flush: nothing may depend on when one looks.
    assert not pipe.run(7, ends)
    assert not pipe.run(40 - 7 - in_flight, ends)
    assert not pipe.run(1, ends)
    assert not pipe.flush(ends, 40)
    assert ends == pytest.approx(event_simulation(times, in_flight, noise), rel=1e-9)


@settings(deadline=None, max_examples=80)
@given(TIMES, st.integers(1, 8))
def test_without_noise_it_settles_at_the_exact_period(times: tuple[float, ...], k: int) -> None:
    f, b, u, w, d, rtt = times
    exact = float(period(Stages(*(np.array(x) for x in (f + b, w, u, d, rtt))), k))
    ends: list[float] = []
    pipeline(times, k, steady(400)).run(400, ends)
    assert (ends[-1] - ends[199]) / 200 == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_noise_never_makes_it_faster_and_has_mean_one(k: int) -> None:
    noise = draw_noise(np.random.default_rng(1), 20_000)
    assert [np.mean(part) for part in noise] == pytest.approx([1, 1, 1, 1], abs=0.01)
    cvs = [np.std(part) for part in noise]
    assert cvs == pytest.approx([0.05, 0.3, 0.1, 0.1], rel=0.03)
    times = (0.01, 0.02, 0.02, 0.03, 0.01, 0.02)
    noisy: list[float] = []
    pipeline(times, k, noise).run(20_000, noisy)
    stages = Stages(*(np.array(x) for x in (0.03, 0.03, 0.02, 0.01, 0.02)))
    assert noisy[-1] / 20_000 > 0.99 * float(period(stages, k))


def test_what_is_in_flight_when_the_worker_leaves_is_not_done() -> None:
    whole: list[float] = []
    pipeline((0.1, 0.1, 0.1, 0.1, 0.1, 0.1), 2, steady(50)).run(50, whole)
    ends: list[float] = []
    gone = (whole[20] + whole[21]) / 2
    assert pipeline((0.1, 0.1, 0.1, 0.1, 0.1, 0.1), 2, steady(50), gone).run(50, ends)
    assert ends == whole[:21]


def stages_of(times: tuple[float, ...]) -> Stages:
    f, b, u, w, d, rtt = times
    return Stages(*(np.array([value]) for value in (f + b, w, u, d, rtt)))


@pytest.mark.parametrize("in_flight", [2, 3, 4])
def test_the_period_that_allows_for_noise_is_the_simulated_one(in_flight: int) -> None:
    """Where the formula without noise is up to 9% short."""
    random = np.random.default_rng(in_flight)
    short = []
    for trial in range(25):
        low, high = (2, 3, 2, 10, 1, 5), (10, 20, 20, 45, 10, 40)
        times = tuple(random.uniform(low, high) * 1e-3)
        pipe = pipeline(times, in_flight, draw_noise(np.random.default_rng(trial), 4000))
        ends: list[float] = []
        pipe.run(4000, ends)
        found = (ends[-1] - ends[499]) / 3500
        expected = float(noisy_period(stages_of(times), in_flight, VARIATION)[0])
        assert expected == pytest.approx(found, rel=0.035)
        short.append(found / float(period(stages_of(times), in_flight)[0]) - 1)
    assert max(short) > 0.04


@given(TIMES, st.integers(1, 8))
@settings(deadline=None)
def test_without_noise_it_is_the_period(times: tuple[float, ...], in_flight: int) -> None:
    stages = stages_of(times)
    assert noisy_period(stages, in_flight, Variation()) == pytest.approx(
        period(stages, in_flight), rel=1e-4
    )
