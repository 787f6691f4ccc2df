"""EdgeMove's policy and its baselines, look by look."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from weft.plans.online import Seen, Server, Setting
from weft.strategies.edgemove.model import SplitCosts, approximate_cut
from weft.strategies.edgemove.online.baselines import DeviceCloud, OnDevice, PipeDreamE
from weft.strategies.edgemove.online.edgemove import CutSearch, EdgeMove

MakeServer = Callable[..., Server]
MakeLook = Callable[..., Seen]
ALONE = Setting(None, 8)


def walk_down(seconds: Callable[[int], float], cut: int, cycles: int, seed: int = 0) -> list[int]:
    """The cuts that Algorithm 2 tries when a cycle takes `seconds(cut)`."""
    search = CutSearch(cut, 16, np.random.default_rng(seed))
    cuts = [cut]
    for _ in range(cycles):
        cuts.append(search.next(cuts[-1], seconds(cuts[-1])))
    return cuts


@pytest.mark.parametrize("seed", range(4))
def test_the_cut_moves_to_the_best_one_and_stays_there(seed: int) -> None:
    cuts = walk_down(lambda cut: 1 + 0.1 * abs(cut - 4), 9, 20, seed)
    assert cuts[-5:] == [4] * 5
    assert all(abs(a - b) <= 2 for a, b in pairwise(cuts))


def test_a_neighbour_that_is_only_a_little_faster_is_not_taken() -> None:
    cuts = walk_down(lambda cut: 1 + 0.01 * cut, 9, 10)
    assert set(cuts) == {8, 9, 10}
    assert cuts[-3:] == [9, 9, 9]


def test_a_held_cut_is_looked_at_again_when_its_time_drifts() -> None:
    search = CutSearch(5, 16, np.random.default_rng(0))
    cut = 5
    for _ in range(4):
        cut = search.next(cut, 1.0)
    assert cut == 5
    assert search.next(cut, 1.09) == 5
    assert search.next(cut, 1.12) != 5  # slower
    assert abs(search.best_s - 1.12) < 1e-9


def test_at_the_rim_only_the_other_side_is_tried() -> None:
    assert set(walk_down(lambda cut: float(cut), 1, 6)) == {1, 2}


def test_it_starts_with_the_fastest_answer_and_the_cut_of_algorithm_one(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    fast, far = server("fast", rtt_s=0.005), server("far", rtt_s=0.1)
    policy = EdgeMove(costs, seed=1)
    decision = policy.decide(look(ALONE, far, fast, period_s=0.0, step=0))
    assert decision is not None
    assert decision.setting.worker == "fast"
    assert decision.setting.in_flight == 2
    network = 0.005 + np.exp(np.log(costs.up_bytes[1:8]).mean()) * (1 / 100e6 + 1 / 200e6)
    assert decision.setting.cut == approximate_cut(8, 0.080, 0.008, network)


def test_the_cloud_is_no_edge_server(costs: SplitCosts, server: MakeServer, look: MakeLook) -> None:
    seen = look(ALONE, server("cloud", 0.1, tier="cloud"), server("edge", 2.0), step=0)
    for policy in (EdgeMove(costs), PipeDreamE(costs)):
        decision = policy.decide(seen)
        assert decision is not None
        assert decision.setting.worker == "edge"


def test_a_slower_cycle_asks_for_a_probe_and_its_answer_changes_the_worker(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    policy = EdgeMove(costs, seed=1)
    a, b = server("a"), server("b", 1.1)
    first = policy.decide(look(ALONE, a, b, step=0))
    assert first is not None
    now = first.setting
    calm = policy.decide(look(now, a, b, period_s=0.04))
    assert calm is None or not calm.probe
    slow = policy.decide(look(calm.setting if calm else now, a, b, period_s=0.06))
    assert slow is not None
    assert slow.probe
    probed = (server("a", 3.0), server("b"))
    changed = policy.decide(look(slow.setting, *probed, period_s=0.06, probed=probed))
    assert changed is not None
    assert changed.setting.worker == "b"
    assert "faster" in changed.why


def test_a_worker_that_is_still_the_best_raises_the_bar(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    policy = EdgeMove(costs, seed=1)
    a, b = server("a"), server("b", 2.0)
    setting = policy.decide(look(ALONE, a, b, step=0)).setting  # type: ignore[union-attr]
    asked = []
    for period_s in (0.04, 0.06, 0.06, 0.06):
        probed = (a, b) if asked and asked[-1] else ()
        decision = policy.decide(look(setting, a, b, period_s=period_s, probed=probed))
        asked.append(decision is not None and decision.probe)
        setting = decision.setting if decision else setting
    assert asked == [False, True, False, False]  # 60 ms is the worst now


def test_a_server_that_says_it_got_faster_is_probed(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    policy = EdgeMove(costs, seed=1)
    first = policy.decide(look(ALONE, server("a"), step=0))
    assert first is not None
    told = policy.decide(look(first.setting, server("a"), server("b"), faster=("b",)))
    assert told is not None
    assert told.probe


@pytest.mark.parametrize("name", ["edgemove", "pipedream-e"])
def test_a_lost_worker_is_replaced_and_with_nobody_left_the_client_goes_on_alone(
    name: str, costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    policy = EdgeMove(costs) if name == "edgemove" else PipeDreamE(costs)
    policy.decide(look(ALONE, server("a"), step=0))
    lost = look(Setting("a", 4, 2), server("b"), lost=True, probed=(server("a"), server("b")))
    decision = policy.decide(
        lost if name == "edgemove" else look(Setting("a", 4, 2), server("b"), lost=True)
    )
    assert decision is not None
    assert decision.setting.worker == "b"
    nobody = policy.decide(look(Setting("b", 4, 2), lost=True))
    assert nobody is not None
    assert nobody.setting == ALONE
    still = policy.decide(look(ALONE))
    assert still is not None
    assert still.setting == ALONE
    assert "out of reach" in still.why or "no server is in reach" in still.why
    back = policy.decide(look(ALONE, server("c")))
    assert back is not None
    assert back.setting.worker == "c"


def test_pipedream_e_stays_whatever_happens_and_pays_a_profile(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    policy = PipeDreamE(costs, seed=1)
    decision = policy.decide(look(ALONE, server("a", mbytes=0.001), step=0))
    assert decision is not None
    assert decision.profile
    assert decision.setting.cut == 1  # 10 ms against 7 ms: balanced, whatever the link
    assert (
        policy.decide(look(decision.setting, server("a", 9.0), server("b"), period_s=9.0)) is None
    )


def test_pipedream_e_takes_any_of_the_half_that_answers_soonest(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    servers = [server(name, rtt_s=rtt) for name, rtt in zip("abcde", (4, 1, 5, 2, 3), strict=True)]
    chosen = set()
    for seed in range(30):
        decision = PipeDreamE(costs, seed=seed).decide(look(ALONE, *servers, step=0))
        assert decision is not None
        chosen.add(decision.setting.worker)
    assert chosen == {"b", "d", "e"}


def test_device_cloud_cuts_again_when_the_data_rate_falls(
    costs: SplitCosts, server: MakeServer, look: MakeLook
) -> None:
    policy = DeviceCloud(costs)
    decision = policy.decide(look(ALONE, server("e"), server("cloud", tier="cloud"), step=0))
    assert decision is not None
    assert decision.setting.worker == "cloud"
    assert decision.profile
    same = server("cloud", tier="cloud", mbytes=99)
    assert policy.decide(look(decision.setting, server("e"), same)) is None
    narrow = server("cloud", tier="cloud", mbytes=5)
    again = policy.decide(look(decision.setting, server("e"), narrow))
    assert again is not None
    assert again.setting.cut > decision.setting.cut
    assert not again.profile
    busy = server("cloud", 50.0, tier="cloud")  # a loaded cloud is not noticed
    assert policy.decide(look(decision.setting, busy)) is None


def test_on_device_never_decides(costs: SplitCosts, server: MakeServer, look: MakeLook) -> None:
    assert OnDevice(costs).decide(look(ALONE, server("a"))) is None
