"""The table of CoopAI's paper: no row without a state, and every file it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers" / "coopai.md"
STATES = ("exact", "reproduced", "not reproduced", "fitted", "ours", "missing")


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_row_has_a_state() -> None:
    assert len(rows()) > 30
    for part, _, _, state in rows():
        assert state.partition(":")[0] in STATES, part


def test_every_file_and_test_is_there() -> None:
    for part, file, test, state in rows():
        named = re.findall(r"`([^`]+)`", f"{file} {test}")
        assert named or state.startswith("missing"), part
        for path in named:
            assert (ROOT / path).is_file(), path
