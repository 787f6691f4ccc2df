"""The matrix strategy x feature: every refusal, and one real run per workload, recovery and feature."""

from __future__ import annotations

import pytest

from proofs import cells
from weft.planning.features import WORKS, matrix
from weft.plans import registry
from weft.plans.protocols import CLONE, GO_BACK, LEAVE_OUT, ONE_NETWORK, PEERS, Feature

# Who stands for a workload and a recovery; the next one where the first refuses a feature.
STAND_FOR = {
    (ONE_NETWORK, GO_BACK): ("chain", "edgemove+", "coopai"),
    (ONE_NETWORK, CLONE): ("stitchnet",),
    (PEERS, LEAVE_OUT): ("fedavg",),
}
# Seen: client and standby stopped at different minibatches, and one of them made an update twice.
STANDS_BY: tuple[str, Feature] = ("edgemove", "a device dies")
# Going back after a death is also shown by coming back after it. A silent peer is left out like a dead one.
# Peers that are resumed have long tests of their own (test_train_peers.py).
SHOWN_ELSEWHERE = (
    ("chain", "a device dies"),
    ("fedavg", "falls silent"),
    ("fedavg", "save and resume"),
)
MOST_RUNS = 20
CELLS = {(row.strategy, feature): says
         for row in matrix().rows for feature, says in row.cells.items()}  # fmt: skip
REFUSED = [cell for cell, says in CELLS.items() if says.startswith("refused")]


def _runs() -> list[tuple[str, Feature]]:
    """Of what is recorded as working, one for each pair and feature."""
    chosen = []
    for names in STAND_FOR.values():
        for feature in matrix().features:
            working = [name for name in names if CELLS[name, feature] == WORKS]
            chosen += [(name, feature) for name in working[:1]]
    return [*(cell for cell in chosen if cell not in SHOWN_ELSEWHERE), STANDS_BY]


def _called(cell: object) -> str:
    return str(cell).replace(" ", "-")


def test_somebody_stands_for_every_workload_and_recovery() -> None:
    pairs = {(s.workload, s.recovery) for s in map(registry.get, registry.names())}
    assert pairs == set(STAND_FOR)
    assert len(_runs()) <= MOST_RUNS


@pytest.mark.parametrize(("strategy", "feature"), REFUSED, ids=_called)
def test_a_refusal_comes_in_words_before_anything_starts(strategy: str, feature: Feature) -> None:
    cells.refused(strategy, feature)


@pytest.mark.parametrize(("strategy", "feature"), _runs(), ids=_called)
def test_what_is_recorded_as_working_works(
    strategy: str, feature: Feature, one_thread: None
) -> None:
    cells.prove(strategy, feature)
