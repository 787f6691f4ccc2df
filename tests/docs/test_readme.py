"""README.md: short, true, and one story."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft import cli
from weft.commands.app import app
from weft.commands.demo import FLEET

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
assert cli.main  # importing the command line has registered every command
COMMANDS = re.findall(r"^    (weft [a-z]+.*?)(?:  .*)?$", README, re.MULTILINE)
SCREEN = 50  # lines


def test_the_readme_is_one_screen_and_a_half() -> None:
    assert len(README.splitlines()) <= 1.5 * SCREEN


def test_the_readme_has_one_story() -> None:
    """The strategy that `auto` chose is the one that is used, on one fleet."""
    strategies = re.findall(r"--strategy ([\w+-]+)|strategy=\"(\w+)\"", README)
    assert {a or b for a, b in strategies} == {"auto"}
    assert set(re.findall(r"examples/fleets/\w+\.toml", README)) == {"examples/fleets/first.toml"}


def test_the_demos_fleet_is_the_readmes() -> None:
    assert (ROOT / "examples" / "fleets" / "first.toml").read_text(encoding="utf-8") == FLEET


def test_the_readmes_comparison_advises_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    (compare,) = [line for line in COMMANDS if line.startswith("weft compare")]
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, compare.split()[1:])
    assert done.exit_code == 0, done.output
    assert re.search(r"best: .* alone .* times as fast", done.output)


def test_the_readmes_commands_work_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, so that each finds what an earlier one has written."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    lines = [line for line in COMMANDS if not line.startswith("weft compare")]  # tried above
    assert [line.split()[1] for line in lines] == ["train", "infer", "web", "top"]
    for line in lines:
        ends = {"weft top": ["--once"], "weft web": ["--host", "no such host"]}  # these go on
        done = CliRunner().invoke(app, [*line.split()[1:], *ends.get(line[:8], [])])
        if line.startswith("weft web"):  # it has found the folder, and would serve it
            assert "cannot listen on no such host" in done.output
        else:
            assert done.exit_code == 0, (line, done.output)
    assert (tmp_path / "runs" / "first" / "weights.safetensors").is_file()


def test_the_readmes_python_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    script = tmp_path / "readme.py"
    script.write_text(block, encoding="utf-8")
    monkeypatch.chdir(ROOT)
    result = runpy.run_path(str(script))["result"]
    assert result.test_accuracy > 0.3
    assert result.plan.strategy == "auto"
