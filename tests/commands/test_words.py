"""What a command says beside its result: help, progress, last words; and what it loads to say it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.commands.line import PLAN, weft
from weft.cli import app
from weft.commands.app import Terminated, say
from weft.commands.running import progress_bar
from weft.errors import LostDevice
from weft.runtime.run.results import Step


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (Terminated(), 143, "terminated\n"),
        (LostDevice("pi", "device pi is silent"), 1, "error: device pi is silent\n"),
    ],
)
def test_however_a_command_ends_its_last_words_are_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, message: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise raised

    monkeypatch.setattr("weft.planning.decide.decide", fail)
    result = weft(f"{PLAN} -s chain")
    assert (result.exit_code, result.stderr, result.stdout) == (code, message, "")


@pytest.mark.parametrize(
    "command", ["models", "strategies", "profile", "plan", "compare", "simulate"]
)
def test_every_command_has_help_with_an_example_and_json(command: str) -> None:
    result = weft(f"{command} --help")
    assert result.exit_code == 0
    assert f"weft {command}" in result.stdout
    assert "Example:" in result.stdout
    assert "--json" in result.stdout


def test_help_shows_what_to_install_with_its_brackets() -> None:
    """Seen: `pip install 'weft'`, because help texts take words in brackets for colours."""
    text = weft("web --help").stdout
    assert "pip install 'weft[web]'" in " ".join(text.replace("\n", " ").split())


def test_commands_are_listed_in_the_order_in_which_people_need_them() -> None:
    """A newcomer begins with `demo`, and looks, plans and compares before anything runs."""
    names = get_command(app).list_commands(None)
    first = ["demo", "models", "strategies", "profile", "plan", "compare", "simulate", "train"]
    assert names[: len(first)] == first


def test_the_real_command_works_as_a_process_without_importing_torch(folder: Path) -> None:
    code = (
        "import sys; from weft.cli import app\n"
        "try: app()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)\n"
    )
    line = [sys.executable, "-c", code, *f"{PLAN} -s chain --json".split()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "three"
    assert done.stderr.strip() == "False"


def test_help_imports_no_planner() -> None:
    script = (
        "import sys, weft.cli; heavy = {'torch', 'numpy', 'weft.api', 'weft.plans.registry'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("columns", [80, None])
def test_the_bar_shows_how_far_a_run_is_in_any_terminal(
    columns: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 80 columns, and in a file, it ended with `60…`: the count and the time were cut."""
    if columns is not None:
        monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
        monkeypatch.setenv("COLUMNS", str(columns))
    with progress_bar(1000) as on_progress:
        on_progress(Step(1000, 1000, 0.413, 104.0, 0.101, 64))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "1000/1000" in text
    assert "predicted 101 ms" in text
    assert "…" not in text


def test_another_device_s_words_do_not_command_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Seen: an error that a node sends was printed as it came."""
    say("nuc: \x1b]0;title\x07 \x9b2J\r gone\nlast line\t.")
    assert capsys.readouterr().err == "nuc: \\x1b]0;title\\x07 \\x9b2J\\r gone\nlast line\t.\n"
