"""The tables of papers name files that exist, and no row is without a state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
PAGES = sorted((HOME / "docs" / "papers").glob("*.md"))


def rows(page: Path) -> list[list[str]]:
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_row_has_a_file_a_test_and_a_state(page: Path) -> None:
    assert rows(page)
    for row in rows(page):
        assert len(row) in (4, 5), row  # some pages say in words what a number stands for
        assert all(row), row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_that_is_named_exists(page: Path) -> None:
    for *_, files, tests, _ in rows(page):
        for cell, folder in ((files, "src/weft"), (tests, "tests")):
            named = re.findall(r"`([\w/+-]+/[\w+-]+\.(?:py|md))`", cell)
            missing = [
                n for n in named if not ((HOME / folder / n).exists() or (HOME / n).exists())
            ]
            assert missing == []
