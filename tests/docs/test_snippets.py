"""Python on the pages: every name that a snippet imports is there, and a whole snippet runs."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from weft.fleet.fleet import Device, Fleet, Link
from weft.planning.decide import decide
from weft.planning.task import ask

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}")
    for page in sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
    for number, text in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("text", SNIPPETS)
def test_what_a_snippet_imports_from_weft_is_there(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "weft":
            module = importlib.import_module(str(node.module))
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert missing == [], node.module


def test_the_snippet_about_programs_prints_each_devices_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet = Fleet(
        (Device("pi", gflops=1.0, data=True), Device("nuc", "edge", gflops=40.0)),
        (Link(("pi", "nuc"), 100.0, 100.0),),
    )
    decide("all-edge", ask("lenet5", fleet, batch=8)).save("plan.json")
    (snippet,) = BLOCK.findall((ROOT / "docs" / "plan-and-program.md").read_text(encoding="utf-8"))
    exec(compile(snippet, "plan-and-program.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "pi\n    " in printed
    assert "nuc\n    " in printed
