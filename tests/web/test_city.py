"""The page of a run with a moving phone: the command of docs/web.md, its map, and a slower link."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra [web] is not installed")
pytest.importorskip("uvicorn", reason="the extra [web] is not installed")
pytest.importorskip("websockets", reason="the extra [web] is not installed")
pytest.importorskip("mlxtend", reason="the extra [data] is not installed")

from proofs.docs import commands
from tests.web.browser import browser_path, open_page, served, take

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(browser_path() is None, reason="this machine has no Chromium"),
]
ROOT = Path(__file__).resolve().parents[2]
# Whoever computes with the phone: a server, or the cloud machine; a server without a part if nobody does.
SERVERS = """(() => {
  const others = [...document.querySelectorAll("[data-card=devices] tbody tr")].filter((row) => row.dataset.device !== "phone");
  const parts = others.filter((row) => /^(all )?layer/.test(row.children[3].textContent));
  return [...parts, ...others].map((row) => row.dataset.device);
})()"""  # noqa: E501


def test_a_walk_through_the_city_is_shown_with_its_map(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (line,) = [line for line in commands(ROOT / "docs" / "web.md") if "--trace" in line]
    done = subprocess.run(
        [sys.executable, "-m", "weft", *line.split()[1:]], cwd=tmp_path, env=dict(os.environ),
        capture_output=True, text=True, timeout=600.0, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1500:]
    with served(tmp_path / "runs") as url, open_page(tmp_path) as page:
        page.open(f"{url}?theme=light")
        page.until("document.querySelector('[data-card=map] svg')", "a map")
        page.until("document.querySelector('[data-group=rates]')", "sliders")
        page.until(
            "document.querySelectorAll('[data-card=devices] tbody tr').length === 6", "devices"
        )
        server = page.run(SERVERS)[0]
        page.run(
            f"(() => {{ const i = document.querySelector('[data-id=\"phone-{server}\"]'); i.value = -40;"
            " i.dispatchEvent(new Event('input')) })()"
        )
        page.until("document.querySelectorAll('.answer .bars strong').length === 3", "an answer")
        assert page.errors == []
        take(page, "web")
