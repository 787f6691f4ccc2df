"""docs/tutorial.md: walked word for word, up to a page that shows the runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("websockets", reason="the extra [web] is not installed")

from proofs.docs import commands
from tests.web.browser import browser_path, open_page, take

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
LONG_S = 300.0


def look(url: str, folder: Path) -> None:
    """What the tutorial says of the page: the run is there, and a slider asks for another plan."""
    with open_page(folder) as page:
        page.open(f"{url}?theme=light")
        page.until("document.querySelectorAll('#choice input').length === 2", "two runs")
        page.run("document.querySelectorAll('#choice label').forEach((label) => { const i ="
                 " label.querySelector('input'); if (i.checked !== (label.textContent.trim() === 'tutorial'))"
                 " i.click(); })")  # fmt: skip
        page.until("document.querySelector('[data-card=run]').textContent.includes('lenet5')", "it")
        page.until("document.querySelector('[data-group=rates]')", "sliders")
        page.run("(() => { const i = document.querySelector('[data-group=rates]'); i.value = -40;"
                 " i.dispatchEvent(new Event('input')) })()")  # fmt: skip
        page.until("document.querySelectorAll('.answer .bars strong').length === 3", "an answer")
        assert page.errors == []
        take(page, "tutorial")


@pytest.mark.proof
def test_the_tutorial_leads_to_a_page_with_its_runs(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    weft = [sys.executable, "-m", "weft"]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "settings")}
    lines = list(commands(PAGE))
    assert any(line.startswith("weft web") for line in lines)
    for line in lines:
        if line.startswith("weft web"):
            continue  # below, when all runs are there
        done = subprocess.run(
            [*weft, *line.split()[1:]], cwd=tmp_path, env=environment, capture_output=True,
            text=True, timeout=LONG_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr[-1500:])
    page = subprocess.Popen(
        [*weft, "web", "runs", "--port", "0", "--json"], cwd=tmp_path, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert page.stdout is not None
        text = ""
        for line in page.stdout:
            text += line
            if line.startswith("}"):
                break
        told = json.loads(text)
        assert set(told["runs"]) == {"tutorial", "own"}
        with urllib.request.urlopen(told["url"], timeout=30) as answer:
            assert b"<html" in answer.read().lower()
        if browser_path() is not None:
            look(told["url"], tmp_path)
    finally:
        page.terminate()
        page.wait(timeout=30)
