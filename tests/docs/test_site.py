"""The documentation as a site: every page has its place, and asks no other host for anything."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import weft

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_overview_lists_every_page_and_every_decision_once() -> None:
    links = Counter(re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "README.md").read_text("utf-8")))
    assert {page: links[page] for page in PAGES if page != "README.md" and links[page] != 1} == {}


def test_every_page_has_its_place_in_the_site() -> None:
    nav = Counter(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
    assert {page: nav[page] for page in PAGES if nav[page] != 1} == {}


def test_no_paragraph_stands_twice_on_a_page() -> None:
    twice = []
    for page in PAGES:
        if page == "commands.md":  # written by a program; options repeat
            continue
        text = re.sub(r"^```.*?^```", "", (DOCS / page).read_text("utf-8"), flags=re.M | re.S)
        paragraphs = Counter(" ".join(p.split()) for p in re.split(r"\n\s*\n", text))
        twice += [(page, p[:60]) for p, count in paragraphs.items() if count > 1 and len(p) > 80]
    assert twice == []


def test_the_python_page_has_every_name() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    names = set(re.findall(r"^::: weft\.(\w+)$", text, re.MULTILINE))
    assert names == set(weft.__all__) - {"__version__"}


@pytest.mark.proof
def test_the_site_is_built_and_asks_no_other_host(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    for name in ("docs", "src"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    done: Any = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"], cwd=tmp_path,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    asked = [
        (page.name, match)
        for page in site.rglob("*.html")
        for match in re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"(https?://[^\"]+)",
                                page.read_text("utf-8"))
    ]  # fmt: skip
    assert asked == []
    assert "Decides how to split a network over a fleet" in (site / "api.html").read_text("utf-8")
    assert (site / "search" / "search_index.js").is_file()  # search works from the disk
