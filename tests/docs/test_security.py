"""SECURITY.md: every row of its table of attacks names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def rows() -> list[list[str]]:
    (table,) = re.findall(r"^\| attacker .*?\n\|---.*?\n(.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def test_every_row_has_a_test_and_every_test_exists() -> None:
    files = [
        p for folder in ("tests", "proofs", "benchmarks") for p in (ROOT / folder).rglob("*.py")
    ]
    assert len(rows()) > 20
    for attacker, wants, defence, tests in rows():
        assert attacker
        assert wants
        assert defence
        named = re.findall(r"`([^`]+)`", tests)
        assert named, f"no test for: {attacker} wants {wants}"
        for name in named:
            path = ROOT / name
            exists = path.is_file() or (path.is_dir() and list(path.glob("test_*.py")))
            assert exists or [p for p in files if p.name == name], f"{name} is no test"
