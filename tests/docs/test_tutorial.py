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

from proofs.docs import commands

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
LONG_S = 300.0


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
    finally:
        page.terminate()
        page.wait(timeout=30)
