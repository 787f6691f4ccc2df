"""What counts as reproduced: a row that agrees, and to which no setting was fitted."""

from __future__ import annotations

import msgspec
import numpy as np
from rich.console import Console

from weft.papers.claims import Claim, Reproduction, joined, mark_fitted, number_claim
from weft.papers.tables import claims_markdown, document, ending, reproduction_table

AGREES = Claim("agrees", "a number", 2.0, 2.0, "x", True)
DIFFERS = Claim("differs", "a number", 2.0, 3.0, "x", False, "why")
FITTED = number_claim("fitted", "a number", 2.0, 2.01, fitted=True)
FITTED_IN_VAIN = number_claim("in-vain", "a number", 2.0, 9.0, fitted=True)
ALL = Reproduction("paper", (AGREES, DIFFERS, FITTED, FITTED_IN_VAIN), ())


def printed(found: Reproduction) -> str:
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(reproduction_table(found))
    return captured.get()


def test_a_fitted_row_is_not_counted_as_reproduced() -> None:
    assert (ALL.reproduced, ALL.not_reproduced, ALL.fitted) == (1, 2, 1)
    assert [claim.verdict for claim in ALL.claims] == ["yes", "no", "fitted", "no"]


def test_a_reproduction_ends_with_three_numbers() -> None:
    assert ending(ALL) == "paper: 1 reproduced, 2 not reproduced, 1 fitted"
    assert printed(ALL).rstrip().splitlines()[-1].strip() == ending(ALL)
    assert claims_markdown(ALL).rstrip().endswith(ending(ALL))


def test_fitted_rows_are_marked_in_tables_and_documents() -> None:
    assert "*fitted*" in claims_markdown(ALL)
    rows = [line for line in printed(ALL).splitlines() if "2.01x" in line]
    assert len(rows) == 1
    assert "fitted" in rows[0].split("2.01x")[1]
    claims = {claim["id"]: claim for claim in document(ALL)["claims"]}  # type: ignore[attr-defined]
    assert claims["fitted"]["fitted"] is True
    assert claims["fitted"]["holds"] is True
    assert claims["fitted"]["reproduced"] is False
    assert claims["agrees"]["reproduced"] is True
    assert claims["agrees"]["fitted"] is False
    assert document(ALL)["counts"] == {
        "reproduced": 1, "not_reproduced": 2, "fitted": 1, "ours_reached": 0, "ours_missed": 0,
    }  # fmt: skip


def test_a_statement_of_ours_is_no_claim_of_the_paper() -> None:
    """Five of the ten claims that `reproduce decoupled` called reproduced were targets of our own."""
    reached = Claim("target", "ours", 3.0, 3.1, "x", True, own=True)
    missed = Claim("aim", "ours", 3.0, 2.0, "x", False, "why", own=True)
    both = Reproduction("paper", (*ALL.claims, reached, missed), ())
    assert [claim.verdict for claim in both.claims[-2:]] == ["reached", "missed"]
    assert ending(both) == ending(ALL)
    assert "1 of 4 claims reproduced" in printed(both)
    assert "statements of ours: 1 reached, 1 missed" in printed(both)
    assert printed(both).rstrip().splitlines()[-1].strip() == ending(ALL)
    assert "statements of ours" not in printed(ALL)
    assert "1 reached, 1 missed" in claims_markdown(both)
    counts = document(both)["counts"]
    assert counts == {
        "reproduced": 1, "not_reproduced": 2, "fitted": 1, "ours_reached": 1, "ours_missed": 1,
    }  # fmt: skip
    last = document(both)["claims"][-2]  # type: ignore[index]
    assert (last["own"], last["reproduced"], last["holds"]) == (True, False, True)


def test_claims_are_marked_by_their_ids() -> None:
    marked = mark_fitted([AGREES, DIFFERS, FITTED], {"agrees"})
    assert [claim.fitted for claim in marked] == [True, False, True]


def test_all_papers_together_keep_the_mark() -> None:
    both = joined([ALL, ALL])
    assert (both.reproduced, both.not_reproduced, both.fitted) == (2, 4, 2)
    assert both.claims[2].id == "paper/fitted"


def test_a_comparison_of_numpy_can_be_written() -> None:
    claim = Claim("a", "b", 1.0, 2.0, "x", np.float64(1.0) < np.float64(2.0))
    assert claim.reproduced is True
    assert b"true" in msgspec.json.encode(claim)
