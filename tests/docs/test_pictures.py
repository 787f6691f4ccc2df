"""Every picture of the pages has somebody who makes it, in words that its page has."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from proofs.docs import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SPEC = importlib.util.spec_from_file_location("write_pictures", ROOT / "docs" / "write_pictures.py")
assert SPEC is not None
assert SPEC.loader is not None
MAKER = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MAKER)


def test_every_picture_is_shown_and_made() -> None:
    shown = {
        name for page in PAGES for name in re.findall(r"pictures/([\w-]+)\.png", page.read_text())
    }
    assert {path.stem for path in (ROOT / "docs" / "pictures").glob("*.png")} == shown
    assert {*MAKER.TESTS, *MAKER.COMMANDS} == shown


def test_what_makes_a_picture_is_there() -> None:
    for path in MAKER.TESTS.values():
        file, _, test = path.partition("::")
        assert f"def {test}" in (ROOT / file).read_text()
    (plan,) = [line for line in commands(ROOT / "docs" / "plan-and-program.md") if "--draw" in line]
    assert MAKER.COMMANDS["plan"][0] == plan


def test_a_wrong_name_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        MAKER.main(["nothing"])
    assert ended.value.code == 2
    assert "there is no picture nothing" in capfd.readouterr().err
