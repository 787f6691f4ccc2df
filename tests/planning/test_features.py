"""The matrix strategy x feature: a cell is refused with a reason, proven by a run, or untested."""

from __future__ import annotations

import pytest

from weft.errors import InputError
from weft.planning.features import FEATURES, UNTESTED, WORKS, matrix, recorded, refusal, require
from weft.plans import registry
from weft.plans.protocols import PEERS


def test_every_strategy_has_every_feature_in_one_of_three_words() -> None:
    table = matrix()
    assert [row.strategy for row in table.rows] == list(registry.names())
    for row in table.rows:
        assert tuple(row.cells) == table.features == FEATURES
        for cell in row.cells.values():
            assert cell in (WORKS, UNTESTED) or cell.startswith("refused: ")


def test_without_a_recorded_run_nothing_works() -> None:
    cells = {cell for row in matrix({}).rows for cell in row.cells.values()}
    assert WORKS not in cells
    shown = matrix({"chain": {"trace": "a run"}, "fedavg": {"own data": "a run"}})
    by_name = {row.strategy: row.cells for row in shown.rows}
    assert by_name["chain"]["trace"] == WORKS
    assert by_name["chain"]["adapt"] == UNTESTED
    assert by_name["fedavg"]["own data"].startswith("refused: ")  # no run can show what is refused


def test_what_is_recorded_is_of_strategies_that_there_are_and_not_refused() -> None:
    for name, proofs in recorded().items():
        assert name in registry.names()
        assert not [feature for feature in proofs if refusal(name, feature)]


@pytest.mark.parametrize("name", registry.names())
def test_what_a_strategy_lacks_is_refused_in_words(name: str) -> None:
    record = registry.get(name)
    for feature in FEATURES:
        why = refusal(name, feature)
        if why is None:
            require(name, feature)
            continue
        with pytest.raises(InputError, match=feature) as raised:
            require(record, feature)
        assert raised.value.exit_code == 2
        assert why in str(raised.value)
    if record.workload == PEERS:
        assert {"adapt", "trace", "own data"} <= set(record.refuses)
    if "train" not in record.modes:
        assert set(record.refuses) == {"own loss", "own data", "save and resume"}
