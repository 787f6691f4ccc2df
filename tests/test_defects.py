"""A defect of a strategy, or of Weft, ends in a line; `--debug` shows the traceback."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft import cli
from weft.commands.app import app
from weft.plans import registry

assert cli.main  # importing the command line has registered every command
FLEET = Path(__file__).parents[1] / "examples" / "fleets" / "first.toml"
BROKEN = """
def broken(task):
    return {}["nothing"]

def endless(task):
    while True:
        pass
"""


@pytest.fixture
def strategies(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(BROKEN)
    return f"{tmp_path}/own.py"


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


def test_a_strategy_that_raises_is_a_row_with_its_reason(strategies: str) -> None:
    words = (
        "compare",
        "lenet5",
        "--fleet",
        str(FLEET),
        "--strategies",
        f"{strategies}:broken,chain",
    )
    code, out, err = run(*words, "--json")
    assert code == 0
    rows = {row["strategy"]: row for row in json.loads(out)["rows"]}
    assert rows["broken"]["why_not"].endswith("own.py:broken line 3 raised KeyError: 'nothing'")
    assert rows["chain"]["valid"]
    assert "Traceback" not in err


@pytest.fixture
def _defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy of Weft itself that raises."""

    def broken(task: object) -> None:
        raise ZeroDivisionError("division by zero")

    record = dataclasses.replace(registry.get("chain"), decide=broken)
    monkeypatch.setitem(registry.STRATEGIES, "chain", record)


@pytest.mark.usefixtures("_defect")
def test_a_defect_is_the_rows_reason_and_debug_shows_it() -> None:
    words = ("compare", "lenet5", "--fleet", str(FLEET), "--strategies", "chain,all-device")
    code, out, err = run(*words, "--json")
    assert code == 0
    rows = {row["strategy"]: row for row in json.loads(out)["rows"]}
    assert rows["chain"]["why_not"].startswith("internal error: ZeroDivisionError")
    assert rows["all-device"]["valid"]
    assert "Traceback" not in err
    code, _, err = run(*words, "--debug")
    assert code == 0
    assert "Traceback" in err


@pytest.mark.usefixtures("_defect")
def test_a_plan_whose_strategy_has_a_defect_ends_in_one_line() -> None:
    words = ("plan", "lenet5", "--fleet", str(FLEET), "--strategy", "chain")
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert "internal error: ZeroDivisionError: division by zero; --debug shows where" in err
    assert "Traceback" not in err
    code, _, err = run("--debug", *words)
    assert code == 1
    assert "Traceback" in err


def test_planning_has_a_limit(strategies: str) -> None:
    words = ("plan", "lenet5", "--fleet", str(FLEET), "--strategy", f"{strategies}:endless")
    code, _, err = run(*words, "--limit", "0.3")
    assert code == 1
    assert "it needs more than 0.3 s of computing to plan; --limit gives it more time" in err
    assert run(*words, "--limit", "0")[0] == 2
