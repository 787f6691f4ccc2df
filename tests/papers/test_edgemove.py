"""`weft reproduce edgemove`: the city gives the speedups that it was described with."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from weft.data.files import data_root
from weft.papers.claims import Reproduction
from weft.papers.edgemove import paper, trained
from weft.papers.edgemove.claims import SPLIT, first_claim, longer, near_claim, order_claim
from weft.papers.edgemove.runs import (
    DOUBLED,
    SPEED,
    WORKLOADS,
    Runs,
    run_walk,
    the_city,
    units,
    workload_costs,
    workload_profile,
)
from weft.papers.noise import measured
from weft.papers.registry import reproduce

VGG, RESNET = WORKLOADS[:2]
TABLE = {  # the described model's speedups: Device-Cloud, PipeDream-E, EdgeMove
    "vgg-cifar": (1.18, 1.68, 2.39),
    "resnet-cinic": (1.54, 1.61, 2.64),
    "vgg-agnews": (1.19, 1.67, 2.34),
    "resnet-speech": (1.54, 1.64, 2.74),
}


@pytest.fixture(scope="module")
def ten() -> Runs:
    """All ten trajectories, at both speeds."""
    runs = Runs(the_city(), 10)
    for trajectory in range(runs.trajectories):
        for speed in (SPEED, DOUBLED):
            run_walk(runs, trajectory, speed)
    return runs


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "FEWER", 2)
        patch.setattr(paper, "FEWER_OURS", 1)
        patch.setattr(trained, "SEEDS", 2)
        patch.setattr(trained, "MOST", 40)
        return reproduce("edgemove", tmp_path_factory.mktemp("edgemove"), quick=True)


def test_networks_are_cut_where_one_tensor_crosses() -> None:
    assert len(units("vgg16")) == 16
    assert len(units("resnet50")) == 18
    names = [layer.name for layer in units("resnet50")]
    assert names[0] == "stem.conv"
    assert names[-1] == "fc"
    assert all("expand" in name for name in names[1:-1])
    assert sum(layer.param_bytes for layer in units("vgg16")) == pytest.approx(134.5e6, rel=0.01)


def test_an_iteration_takes_what_was_given_and_30_percent_of_it_evenly() -> None:
    for load in (VGG, RESNET):
        costs = workload_costs(load)
        assert costs.alone_s == pytest.approx(load.client_s)
        assert costs.worker_s[0] == pytest.approx(load.idle_s)
    times = workload_profile(VGG).devices["client"]
    last = (times.forward_s[-1] + times.backward_s[-1]) * 32  # a layer of almost no operations
    assert last == pytest.approx(0.3 / 16 * 0.130, rel=0.01)


@pytest.mark.proof
@pytest.mark.skipif(data_root(None) is None, reason="needs the EUA data: set WEFT_DATA")
def test_the_table_is_that_of_the_described_model_within_five_percent(ten: Runs) -> None:
    for load, row in TABLE.items():
        ours = [ten.speedup(load, policy) for policy in SPLIT]
        assert ours == pytest.approx(row, rel=0.05), load


@pytest.mark.proof
@pytest.mark.skipif(data_root(None) is None, reason="needs the EUA data: set WEFT_DATA")
def test_double_speed_costs_pipedream_e_what_the_described_model_says(ten: Runs) -> None:
    """39% there, 44% in the paper; and EdgeMove 3%."""
    assert 0.34 <= longer(ten, "pipedream-e").mean <= 0.47
    assert -0.02 <= longer(ten, "edgemove").mean <= 0.06


@pytest.mark.proof
def test_edgemove_plus_reaches_its_goals_in_either_city(ten: Runs) -> None:
    assert ten.speedup(VGG.id, "edgemove+ (2)") >= 3.2
    assert ten.speedup(RESNET.id, "edgemove+ (2)") >= 4.2
    assert ten.speedup(VGG.id, "edgemove+") >= 5.0
    assert ten.speedup(RESNET.id, "edgemove+") >= 4.5
    for load in (VGG, RESNET):
        paid, free = (ten.behind_bound(load.id, "edgemove+ (2)", paid) for paid in (True, False))
        assert 0 < paid < free <= 0.10
        assert ten.behind_bound(load.id, "edgemove") > 0.35
        assert ten.speedup(load.id, "edgemove+ 8 bit") > ten.speedup(load.id, "edgemove+")


@pytest.mark.proof
def test_the_schemes_come_in_the_paper_s_order(ten: Runs) -> None:
    for load in WORKLOADS:
        speedups = [1.0, *(ten.speedup(load.id, policy) for policy in SPLIT)]
        assert speedups == sorted(speedups)


@pytest.mark.proof
def test_figures_maps_and_tables_are_written(quick: Reproduction) -> None:
    names = {Path(file).name for file in quick.files}
    assert names == {
        "figure2.png", "figure5.png", "figure6.png", "figure8.png", "figure9.png", "figure10.png",
        "map_edgemove.png", "map_edgemove_plus.png", "claims.md", "tables.md",
    }  # fmt: skip
    for file in map(Path, quick.files):
        if file.suffix == ".png":
            assert file.read_bytes().startswith(b"\x89PNG")
    tables = next(Path(file) for file in quick.files if file.endswith("tables.md")).read_text()
    assert "| edgemove+ (2) |" in tables
    assert ("generated city" in tables) == (data_root(None) is None)


@pytest.mark.proof
def test_every_claim_that_fails_has_a_reason(quick: Reproduction) -> None:
    assert len({claim.id for claim in quick.claims}) == len(quick.claims)
    assert [claim.id for claim in quick.claims if not (claim.reproduced or claim.note)] == []
    found = {claim.id: claim for claim in quick.claims}
    assert found["fig10-cuts"].reproduced
    assert found["fig2-edge"].reproduced
    assert found["fig5-five"].reproduced
    assert found["table1-order"].paper == "on all four"
    assert {"fig2-share", "fig5-500", "intro-image", "intro-text", "intro-audio"} <= set(found)
    quotients = ("intro-image", "intro-text", "intro-audio", "abstract-speedup", "table1-first",
                 "accuracy-first", "fig9-total")  # fmt: skip
    assert all(found[id].fitted for id in quotients), "of Table 1's numbers, which are fitted"
    assert found["fig5-stable"].fitted, "independent noise, which was chosen, falls with the cycle"
    assert {"accuracy-minibatches", "accuracy-vgg-cifar", "accuracy-first"} <= set(found)


def test_a_margin_that_chance_could_give_is_no_margin() -> None:
    assert measured([0.1, 0.1, 0.1]).above(0.05)
    assert not measured([0.3, -0.2, 0.1]).above(0.0)
    assert not measured([0.3]).above(0.0)  # of one trajectory nothing is known of chance
    assert measured([-0.1, -0.12]).below(0.0)


def test_fewer_trajectories_never_flatter_a_number() -> None:
    """The same mean counts as reproduced with little chance in it, and not with much."""
    assert near_claim("a", "a", 2.0, 2.06, 0.01).reproduced
    assert not near_claim("a", "a", 2.0, 2.06, 0.04).reproduced
    assert not near_claim("a", "a", 2.0, 2.0, math.inf).reproduced


@pytest.mark.proof
def test_edgemove_is_the_fastest_beyond_chance_and_ties_are_not_called_wins(ten: Runs) -> None:
    assert first_claim(ten).reproduced
    order = order_claim(ten)
    assert order.reproduced == (order.ours == "on 4 of 4")
    assert "± " in order.note


@pytest.mark.proof
def test_quick_walks_enough_trajectories_for_edgemoves_place(ten: Runs) -> None:
    """Ten walks tell it by four standard errors at least, on every workload; --quick walks more."""
    assert paper.TRAJECTORIES >= paper.FEWER >= ten.trajectories
    for load in WORKLOADS:
        for other in ("on-device", *SPLIT[:2]):
            gain = ten.gain(load.id, "edgemove", other)
            assert gain.mean > 4 * gain.error, (load.id, other)
