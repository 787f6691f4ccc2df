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
        for row in rows:
            assert len(row) == len(header), row
            assert all(row), row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"[`(| ]([\w/+-]+/[\w+-]+\.(?:py|md))\b", page.read_text())
    places = (HOME / "src" / "weft", HOME / "tests", HOME, HOME / "docs")
    assert named
    assert [name for name in named if not any((at / name).exists() for at in places)] == []
