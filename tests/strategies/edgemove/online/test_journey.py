"""Walks through the generated city: every minibatch is done once, changes cost what they should."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from weft.fleet.city import Day
from weft.plans.online import Decision, Seen, Setting
from weft.strategies.edgemove.model import SplitCosts, Ways, period, stage_seconds
from weft.strategies.edgemove.online.baselines import PROFILED, DeviceCloud, OnDevice, PipeDreamE
from weft.strategies.edgemove.online.clairvoyant import clairvoyant_s
from weft.strategies.edgemove.online.edgemove import EdgeMove
from weft.strategies.edgemove.online.journey import travel
from weft.strategies.edgemove.online.plus import EdgeMovePlus

STEPS = 4000


class Scripted:
    """Does what it is told at each look; remembers what it saw."""

    def __init__(self, every: int, *settings: Setting | None) -> None:
        self.every = every
        self.settings = list(settings)
        self.seen: list[Seen] = []

    def decide(self, seen: Seen) -> Decision | None:
        self.seen.append(seen)
        setting = self.settings.pop(0) if self.settings else None
        return None if setting is None else Decision(setting, "told so")


@pytest.mark.parametrize(
    "name", ["on-device", "device-cloud", "pipedream-e", "edgemove", "edgemove+"]
)
def test_every_minibatch_is_done_once_in_order_and_again_the_same(
    name: str, costs: SplitCosts, a_day: Callable[..., Day]
) -> None:
    make = {
        "on-device": lambda: OnDevice(costs),
        "device-cloud": lambda: DeviceCloud(costs),
        "pipedream-e": lambda: PipeDreamE(costs, 200, seed=2),
        "edgemove": lambda: EdgeMove(costs, 200, seed=2),
        "edgemove+": lambda: EdgeMovePlus(costs),
    }[name]
    first, second = (travel(make(), costs, a_day(seed=2), STEPS, seed=2) for _ in range(2))
    assert len(first.ends_s) == STEPS
    assert (np.diff(first.ends_s) > 0).all()
    assert first.ends_s == second.ends_s
    assert first.changes == second.changes
    assert first.seconds >= clairvoyant_s(costs, a_day(seed=2), 4, STEPS)


def test_alone_it_takes_the_client_s_own_time(costs: SplitCosts, a_day: Callable[..., Day]) -> None:
    journey = travel(OnDevice(costs), costs, a_day(), STEPS, seed=1)
    assert journey.seconds == pytest.approx(STEPS * costs.alone_s, rel=0.01)
    assert journey.changes == []


def test_a_moved_cut_costs_a_flush_and_the_layers_that_change_hands(
    costs: SplitCosts, a_day: Callable[..., Day]
) -> None:
    day = a_day()
    policy = Scripted(
        100, Setting("cloud", 4, 3), Setting("cloud", 2, 3), None, Setting("cloud", 5, 3)
    )
    journey = travel(policy, costs, day, 600, seed=1)
    first, up, down = journey.changes
    rates = [day.at(change.now_s) for change in journey.changes]
    assert first.pause_s == pytest.approx(4e6 / rates[0].up_bytes_per_s[-1])
    assert up.pause_s == pytest.approx(2e6 / rates[1].up_bytes_per_s[-1])
    assert down.pause_s == pytest.approx(3e6 / rates[2].down_bytes_per_s[-1])
    # Asked after 100 and after 302 minibatches; the two others in flight are finished first.
    assert [change.step for change in journey.changes] == [0, 102, 304]
    # Nothing is done in the pause, and the pipeline starts empty: one whole way at least.
    assert journey.ends_s[102] - journey.ends_s[101] > up.pause_s + 2 * costs.client_s[2] / 3


def test_a_profile_stops_training(costs: SplitCosts, a_day: Callable[..., Day]) -> None:
    journey = travel(PipeDreamE(costs, seed=1), costs, a_day(), 100, seed=1)
    assert journey.paused_s > PROFILED * costs.alone_s
    assert journey.ends_s[0] > journey.paused_s


def test_a_worker_that_is_left_behind_is_told_and_its_minibatches_are_done_again(
    costs: SplitCosts, a_day: Callable[..., Day]
) -> None:
    day = a_day()
    reach = day.until(900).reach[:900, :-1]
    stays = np.where(reach[0] & ~reach.all(axis=0), (~reach).argmax(axis=0), 9999)
    index = int(stays.argmin())
    policy = Scripted(10_000, Setting(day.city.names[index], 4, 2), Setting("cloud", 4, 2))
    journey = travel(policy, costs, day, STEPS, seed=1)
    lost = policy.seen[1]
    assert lost.lost
    assert lost.now_s == stays[index]
    assert day.city.names[index] not in {server.name for server in lost.servers}
    assert len(journey.ends_s) == STEPS
    assert journey.ends_s[lost.step - 1] <= lost.now_s < journey.ends_s[lost.step]


def test_a_policy_that_loses_its_worker_and_says_nothing_goes_on_alone(
    costs: SplitCosts, a_day: Callable[..., Day]
) -> None:
    day = a_day()
    near = day.at(0).reach[:-1]
    name = day.city.names[int(np.flatnonzero(near)[0])]
    journey = travel(Scripted(10_000, Setting(name, 4, 2)), costs, day, 12_000, seed=1)
    assert journey.changes[-1].after == Setting(None, 8)


def test_what_is_seen_are_the_servers_in_reach_measured_with_noise(
    costs: SplitCosts, a_day: Callable[..., Day]
) -> None:
    day = a_day()
    policy = Scripted(100)
    travel(policy, costs, day, 1000, seed=1)
    for seen in policy.seen:
        truth = day.at(seen.now_s)
        names = [day.city.names[i] for i in np.flatnonzero(truth.reach)]
        assert [server.name for server in seen.servers] == names
        slow = np.array([server.slowdown for server in seen.servers])
        ratio = slow / truth.slowdown[truth.reach]
        assert 0.05 < ratio.std() < 0.3
        assert [server.tier for server in seen.servers].count("cloud") == 1
    assert policy.seen[0].probed
    assert not policy.seen[1].probed
    assert policy.seen[1].period_s == pytest.approx(costs.alone_s, rel=0.02)


def test_the_clairvoyant_needs_less_with_more_in_flight(
    costs: SplitCosts, a_day: Callable[..., Day]
) -> None:
    times = [clairvoyant_s(costs, a_day(), k, STEPS) for k in (1, 2, 4)]
    assert times == sorted(times, reverse=True)
    assert times[0] < STEPS * costs.alone_s


def test_a_clairvoyant_that_pays_for_its_moves_is_between_the_free_one_and_every_policy(
    costs: SplitCosts, a_day: Callable[..., Day]
) -> None:
    for seed in (1, 2, 3):
        free, paid = (
            clairvoyant_s(costs, a_day(seed=seed), 2, STEPS, paid) for paid in (False, True)
        )
        found = travel(EdgeMovePlus(costs, in_flight=2), costs, a_day(seed=seed), STEPS, seed)
        assert free < paid < found.seconds


def test_the_free_clairvoyant_takes_the_best_of_every_second(
    costs: SplitCosts, a_day: Callable[..., Day]
) -> None:
    """The naive count: in every second as many minibatches as the best server and cut make."""
    day, done, second = a_day(), 0.0, 0
    while done < STEPS:
        moment = day.at(second)
        near = np.flatnonzero(moment.reach[:-1])
        ways = Ways(*(part[near] for part in moment[1:]))
        rate = 1 / costs.alone_s
        if len(near):
            rate = max(rate, 1 / float(period(stage_seconds(costs, ways), 2).min()))
        done, second = done + rate, second + 1
    naive = second - (done - STEPS) / rate
    assert clairvoyant_s(costs, a_day(), 2, STEPS) == pytest.approx(naive)
