"""The terminal shows what the page shows."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from weft.cli import app
from weft.plans.plan import Plan
from weft.web.terminal import sparkline, watch


def test_devices_links_losses_and_events_are_there(make_folder: Callable[..., Path]) -> None:
    folder = make_folder().parent
    make_folder("runs/second", "failed", why="nuc is gone")
    out = io.StringIO()
    watch(folder, once=True, console=Console(file=out, width=110))
    text = out.getvalue()
    for words in ("first", "second", "6 of 40 minibatches", "cloud", "lost", "nuc – cloud", "1.0%",
                  "device_lost cloud", "test accuracy 0.5", "nuc is gone"):  # fmt: skip
        assert words in text


def test_what_a_device_holds_is_said_in_words(make_folder: Callable[..., Path], plan: Plan) -> None:
    """Seen: `4-4 all 64 samples`, and the heads of a table of events where there was none."""
    folder = make_folder()
    (folder / "events.jsonl").write_text("")
    out = io.StringIO()
    watch(folder.parent, once=True, console=Console(file=out, width=110))
    first, last = plan.shards[0].layers
    layers = f"layer {first}" if first == last else f"layers {first}-{last}"
    assert f"{layers}, all" in out.getvalue()
    assert "why" not in out.getvalue()


@pytest.mark.proof
def test_the_demos_folder_is_shown_like_that_of_any_run(tmp_path: Path) -> None:
    """It had a picture's trace under the name of the file that says how a fleet changes."""
    pytest.importorskip("mlxtend", reason="the extra [data] is not installed")
    done = CliRunner().invoke(
        app, ["demo", "--steps", "3", "--json", "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 0, done.output
    for name in json.loads(done.stdout)["files"]:
        assert (tmp_path / "run" / name).is_file()
    out = io.StringIO()
    watch(tmp_path, once=True, console=Console(file=out, width=110))
    assert "3 of 3 minibatches" in out.getvalue()
    assert "cannot be shown" not in out.getvalue()


def test_a_curve_in_one_line() -> None:
    assert sparkline([3.0, 2.0, 1.0], 10) == "█▅▁"
    assert sparkline([1.0, 1.0], 10) == "▁▁"
    assert len(sparkline([float(n) for n in range(1000)], 40)) == 40


@pytest.mark.parametrize("command", ["web", "top"])
def test_a_folder_that_is_none_is_refused(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [command, str(tmp_path / "nothing")])
    assert result.exit_code == 2


def test_top_prints_a_document(make_folder: Callable[..., Path]) -> None:
    result = CliRunner().invoke(app, ["top", str(make_folder()), "--json"])
    assert result.exit_code == 0
    (run,) = json.loads(result.stdout)["runs"]
    assert run["run"]["done"] == 6


def test_a_folder_from_a_stranger_does_not_command_the_terminal(
    make_folder: Callable[..., Path],
) -> None:
    """Seen: `[/x]` in an event ended `weft top`, and a terminal obeyed what stood in it."""
    folder = make_folder("runs/first", "failed", why="\x1b[2Jwhy")
    event = {
        "step": "\x9b",
        "kind": "[/red]",
        "at_s": "now",
        "why": "see [/tmp/x] \x1b]0;title\x07",
    }
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    out = io.StringIO()
    watch(folder.parent, once=True, console=Console(file=out, width=110, force_terminal=True))
    text = out.getvalue()
    assert "see [/tmp/x] \\x1b]0;title\\x07" in text
    for command in ("\x1b[2J", "\x1b]", "\x07", "\x9b"):
        assert command not in text
