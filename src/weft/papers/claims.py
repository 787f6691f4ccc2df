"""What a paper claims beside what we get, as plain data.

    Claim("fig7-all-edge", "AlexNet: largest speedup over All-Edge", 2.3, 2.25, "x", True)

Each side is a number or a few words. A claim that is not confirmed is a row like any other: `reproduced` is
False, and the note says why. A claim is *fitted* if the paper does not print a setting, and the setting was
chosen here so that the claim holds. Such a row shows only that a setting exists. It is no evidence, and it
does not count as reproduced.

A statement of *ours* (a target, a check beyond the paper) is nothing that the paper says. It is printed
beside the claims, as reached or missed, and counts with none of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr, replace

WITHIN = 0.05  # a printed number counts as reproduced if ours differs by at most this share

Said = float | str
Verdict = Literal["yes", "no", "fitted", "reached", "missed"]


class Claim(Struct, frozen=True):
    """One statement of a paper, and our result. `reproduced`: the two agree."""

    id: str
    what: str
    paper: Said
    ours: Said
    unit: str
    reproduced: bool
    note: str = ""
    fitted: bool = False  # a setting was chosen here so that the two agree
    own: bool = False  # a statement of ours; the paper has none like it

    def __post_init__(self) -> None:
        """A comparison of numpy's numbers is no bool, and could not be written to a file."""
        force_setattr(self, "reproduced", bool(self.reproduced))

    @property
    def verdict(self) -> Verdict:
        """How the row counts. A fitted claim that does not agree counts as not reproduced."""
        if self.own:
            return "reached" if self.reproduced else "missed"
        if not self.reproduced:
            return "no"
        return "fitted" if self.fitted else "yes"


class Table(Struct, frozen=True):
    """Cells as they are printed. The first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Reproduction(Struct, frozen=True):
    """All claims of a paper, statements of ours, and the files and tables that were written."""

    paper: str
    claims: tuple[Claim, ...]
    files: tuple[str, ...]
    tables: tuple[Table, ...] = ()

    def count(self, verdict: Verdict) -> int:
        """How many claims have this verdict."""
        return sum(claim.verdict == verdict for claim in self.claims)

    @property
    def reproduced(self) -> int:
        """How many claims agree with the paper without a setting that was fitted to them."""
        return self.count("yes")

    @property
    def not_reproduced(self) -> int:
        """How many claims do not agree with the paper."""
        return self.count("no")

    @property
    def fitted(self) -> int:
        """How many claims agree because a setting was fitted to them."""
        return self.count("fitted")

    @property
    def printed(self) -> int:
        """How many claims are the paper's."""
        return self.reproduced + self.not_reproduced + self.fitted


def number_claim(
    id: str, what: str, paper: float, ours: float, unit: str = "x", note: str = "",
    *, fitted: bool = False,
) -> Claim:  # fmt: skip
    """A claim with a number. It is reproduced if ours is within 5% of the paper's."""
    near = abs(ours - paper) <= WITHIN * paper
    return Claim(id, what, paper, ours, unit, near, note, fitted)


def mark_fitted(claims: Iterable[Claim], ids: Container[str]) -> list[Claim]:
    """The same claims; those with these ids are marked as fitted."""
    return [replace(claim, fitted=claim.fitted or claim.id in ids) for claim in claims]


def joined(reproductions: list[Reproduction]) -> Reproduction:
    """Several papers as one, for `weft reproduce all`. The ids then begin with the paper's name."""
    return Reproduction(
        "all",
        tuple(replace(c, id=f"{r.paper}/{c.id}") for r in reproductions for c in r.claims),
        tuple(file for r in reproductions for file in r.files),
        tuple(table for r in reproductions for table in r.tables),
    )
