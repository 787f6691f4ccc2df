"""edgemove+ takes the best of everything, and changes only where that pays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import pytest

from weft.plans.online import Seen, Server, Setting
from weft.strategies.edgemove.model import SplitCosts, period, stage_seconds
from weft.strategies.edgemove.online.baselines import ways_of
from weft.strategies.edgemove.online.plus import MOST_IN_FLIGHT, EdgeMovePlus, mean_of

MakeServer = Callable[..., Server]
MakeLook = Callable[..., Seen]
ALONE = Setting(None, 8)


def start(policy: EdgeMovePlus, look: MakeLook, *servers: Server) -> Setting:
    decision = policy.decide(look(ALONE, *servers, step=0))
    assert decision is not None
    return decision.setting


@pytest.mark.parametrize("in_flight", [1, 2, None])
def test_it_starts_with_the_best_server_cut_and_count(
    in_flight: int | None, costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    servers = [server("a", 2.0, 50), server("b", 1.0, 20, 0.04), server("c", 3.0, 200)]
    chosen = start(EdgeMovePlus(costs, in_flight=in_flight), look, *servers)
    stages = stage_seconds(costs, ways_of(servers))
    counts = range(1, MOST_IN_FLIGHT + 1) if in_flight is None else [in_flight]
    best = min(float(period(stages, k).min()) for k in counts)
    row = [s.name for s in servers].index(str(chosen.worker))
    assert float(period(stages, chosen.in_flight)[row, chosen.cut - 1]) == pytest.approx(
        best, rel=0.02
    )


def test_it_changes_for_a_better_server_but_only_after_a_probe(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    policy = EdgeMovePlus(costs, in_flight=2)
    a, better = server("a", 6.0, 30, 0.05), server("b", 1.0, 200, 0.005)
    now = start(policy, look, a)
    asked = policy.decide(look(now, a, better))
    assert asked is not None
    assert asked.probe
    assert asked.setting == now
    answered = policy.decide(look(now, a, better, probed=(a, better)))
    assert answered is not None
    assert answered.setting.worker == "b"
    assert "another server" in answered.why


def test_a_server_that_was_only_lucky_in_passing_fails_the_probe(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    policy = EdgeMovePlus(costs, in_flight=1)
    a = server("a", 3.0)
    now = start(policy, look, a)
    lucky = policy.decide(look(now, a, server("b", 1.0)))
    assert lucky is not None
    assert lucky.probe
    truth = msgspec.structs.replace(server("b", 3.5), over=50)
    assert policy.decide(look(now, a, server("b", 3.5), probed=(truth,))) is None


def test_a_measurement_counts_by_the_minibatches_behind_it(server: MakeServer) -> None:
    """Twenty minibatches are remembered of a slowdown, four of a rate."""
    long = msgspec.structs.replace(server("a", 1.0, 100), over=1000)
    new = msgspec.structs.replace(server("a", 2.0, 200), over=20)
    found = mean_of(long, new)
    assert found.slowdown == pytest.approx(1.5)
    assert found.up_bytes_per_s == pytest.approx(1e8 + 1e8 * 20 / 24)
    assert mean_of(None, new) == new


def test_nobody_is_taken_to_be_faster_than_an_idle_server(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    servers = server("chance", 0.5, rtt_s=0.012), server("near", 1.0, rtt_s=0.010)
    assert start(EdgeMovePlus(costs, in_flight=1), look, *servers).worker == "chance"
    assert start(EdgeMovePlus(costs, in_flight=1, idle=1.0), look, *servers).worker == "near"


def test_it_stays_where_less_than_five_percent_would_be_gained(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    policy = EdgeMovePlus(costs, in_flight=2)
    a, hardly = server("a", rtt_s=0.012), server("b", rtt_s=0.010)
    now = start(policy, look, a)
    asked = policy.decide(look(now, a, hardly))
    assert asked is None or asked.setting == now
    assert policy.decide(look(now, a, hardly, probed=(a, hardly))) is None


def test_a_server_that_is_soon_out_of_reach_is_not_worth_the_move(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    a, better = server("a", 6.0, 30, 0.05), server("b", 1.0, 200, 0.005)
    leaving = msgspec.structs.replace(better, stays_s=0.05)
    policy = EdgeMovePlus(costs, in_flight=2)
    now = start(policy, look, a)
    assert policy.decide(look(now, a, leaving)) is None
    assert policy.decide(look(now, a, leaving, probed=(a, leaving))) is None


def test_one_bad_measurement_does_not_move_it(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    policy = EdgeMovePlus(costs, in_flight=2)
    a, b = server("a"), server("b", 1.2)
    now = start(policy, look, a, b)
    for _ in range(10):
        assert policy.decide(look(now, a, b)) is None
    assert policy.decide(look(now, server("a", 2.0), b)) is None


def test_slow_links_are_answered_by_a_codec_if_it_may(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    assert (
        start(EdgeMovePlus(costs, codecs=("none", "int8")), look, server("a", mbytes=5)).codec
        == "int8"
    )
    assert start(EdgeMovePlus(costs), look, server("a", mbytes=5)).codec == "none"


def test_with_nobody_worth_it_the_client_trains_alone(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    policy = EdgeMovePlus(costs)
    nobody = policy.decide(look(ALONE, step=0))
    slow = policy.decide(look(ALONE, server("slow", 50.0, 0.01, 5.0)))
    assert nobody is not None
    assert slow is not None
    assert nobody.setting == slow.setting == ALONE
    assert nobody.why == "no server is in reach"
    assert slow.why == "no server is faster than the client alone"
    lost = EdgeMovePlus(costs).decide(look(Setting("a", 3, 2), lost=True))
    assert lost is not None
    assert lost.setting == ALONE


def test_a_client_without_room_for_the_whole_network_is_not_left_alone(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    """The planner never left it alone; the policy did as soon as no server was faster."""
    policy = EdgeMovePlus(costs, fits=lambda setting: setting.worker is not None)
    slow = server("slow", 50.0, 0.01, 5.0)
    assert start(policy, look, slow).worker == "slow"
    now = start(policy, look, slow)
    assert policy.decide(look(now, slow)) is None
    assert start(EdgeMovePlus(costs, fits=lambda setting: True), look, slow) == ALONE


def test_at_the_start_weights_that_lie_with_a_server_already_need_not_be_moved(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    """The weights of a new worker take a good part of the time that a choice holds."""
    heavy = dataclasses.replace(costs, param_bytes=costs.param_bytes * 100)
    a, b = server("a", 1.3, 40, 0.01), server("b", 1.0, 40, 0.01)
    assert start(EdgeMovePlus(heavy, in_flight=1), look, a, b).worker == "b"
    placed = look(ALONE, a, b, step=0, placed=Setting("a", 3, 1))
    decision = EdgeMovePlus(heavy, in_flight=1).decide(placed)
    assert decision is not None
    assert decision.setting.worker == "a"
