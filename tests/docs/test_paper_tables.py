"""The tables of papers name files that exist, and no row is without a state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
PAGES = sorted((HOME / "docs" / "papers").glob("*.md"))


def tables(page: Path) -> list[list[list[str]]]:
    """The tables of a page: each a list of rows, the header first."""
    found: list[list[list[str]]] = []
    before = ""
    for line in page.read_text().splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            if not line.startswith("|--"):
                found[-1].append([cell.strip() for cell in line.strip("|").split(" | ")])
        before = line
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_row_has_a_state(page: Path) -> None:
    assert sum(len(rows) for rows in tables(page)) > 10
    for header, *rows in tables(page):
        assert header[-1].startswith("state")
        assert ("file" in header) == ("test" in header), "a file without the test that holds it"
        for row in rows:
            assert len(row) == len(header), row
            assert all(row), row


# What each paper prints: the last number of its figures, tables, equations and algorithms.
PRINTED = {
    "hiertrain": {"Fig": 11, "Table": 2, "Eq": 19, "Algorithm": 1},
    "coopai": {"Fig": 9, "Table": 2, "Eq": 5},
    "edgemove": {"Fig": 11, "Table": 2, "Eq": 1, "Algorithm": 3},
    "stitchnet": {"Fig": 18},
    "decoupled": {"Fig": 5},
}
ROMAN = {"I": 1, "II": 2}


def named(kind: str, text: str) -> set[int]:
    """The numbers that a text names: "Fig. 3", "Figs. 3 and 4", "Eqs 13 to 15", "Figures 1, 3, 4"."""
    seen: set[int] = set()
    words = rf"(?:{kind}\w*\.?) \(?((?:[IVX]+|\d+)[a-d]?\)?(?:(?:, | and | to )\(?(?:\d+)\)?)*)"
    for match in re.findall(words, text, re.IGNORECASE):
        numbers = [ROMAN.get(n) or int(n) for n in re.findall(r"\b(?:II?|\d+)", match)]
        if " to " in match:
            numbers = list(range(numbers[0], numbers[-1] + 1))
        seen.update(numbers)
    return seen


@pytest.mark.parametrize("paper", PRINTED)
def test_every_figure_table_equation_and_algorithm_has_a_row(paper: str) -> None:
    page = next(page for page in PAGES if page.stem == paper)
    rows = "\n".join(row[0] for table in tables(page) for row in table[1:])
    for kind, last in PRINTED[paper].items():
        assert sorted(set(range(1, last + 1)) - named(kind, rows)) == [], kind


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_state_is_a_verdict(page: Path) -> None:
    """A row once said only how it would be decided."""
    for _, *rows in tables(page):
        assert [row for row in rows if row[-1].startswith(("decided", "tested against"))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"[`(| ]([\w/+-]+/[\w+-]+\.(?:py|md))\b", page.read_text())
    places = (HOME / "src" / "weft", HOME / "tests", HOME, HOME / "docs")
    assert named
    assert [name for name in named if not any((at / name).exists() for at in places)] == []
