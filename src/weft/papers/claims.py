"""What a paper claims beside what we get, as plain data.

    Claim("fig7-all-edge", "AlexNet: largest speedup over All-Edge", 2.3, 2.25, "x", True)

Each side is a number or a few words. A claim that does not come out is a row like any other:
`reproduced` is False and the note says why.
"""

from __future__ import annotations

from msgspec import Struct

WITHIN = 0.05  # a printed number counts as reproduced where ours is this close to it

Said = float | str


class Claim(Struct, frozen=True):
    """One thing that a paper says, and what comes out here."""

    id: str
    what: str
    paper: Said
    ours: Said
    unit: str
    reproduced: bool
    note: str = ""


class Table(Struct, frozen=True):
    """Cells as they are printed; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Reproduction(Struct, frozen=True):
    """All claims of a paper, with the files and tables that were written."""

    paper: str
    claims: tuple[Claim, ...]
    files: tuple[str, ...]
    tables: tuple[Table, ...] = ()

    @property
    def reproduced(self) -> int:
        return sum(claim.reproduced for claim in self.claims)


def number_claim(
    id: str, what: str, paper: float, ours: float, unit: str = "x", note: str = ""
) -> Claim:
    """A claim with a number: it is reproduced where ours is within 5% of the paper's."""
    return Claim(id, what, paper, ours, unit, abs(ours - paper) <= WITHIN * paper, note)


def joined(reproductions: list[Reproduction]) -> Reproduction:
    """Several papers as one, for `weft reproduce all`: ids say which paper they are of."""
    return Reproduction(
        "all",
        tuple(
            Claim(f"{r.paper}/{c.id}", c.what, c.paper, c.ours, c.unit, c.reproduced, c.note)
            for r in reproductions
            for c in r.claims
        ),
        tuple(file for r in reproductions for file in r.files),
        tuple(table for r in reproductions for table in r.tables),
    )
