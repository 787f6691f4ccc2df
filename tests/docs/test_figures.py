"""Figures on the pages say which script made them, and every script is on the page of benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

from weft.papers.registry import NAMES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
SCRIPTS = {path.name for path in (ROOT / "benchmarks").glob("*.py")}
# They run the others, or are parts of them.
HELPERS = {"regenerate.py", "series.py", "figures.py", "two_stages.py", "torch_rank.py", "more_models.py",
           "other_models.py", "plus_swarm.py", "real_nodes.py", "tiny_models.py"}  # fmt: skip


def section(text: str, anchor: str) -> str:
    """The part of a page under a heading with this anchor."""
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading = part.splitlines()[0]
        if re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") == anchor:
            return part
    raise AssertionError(f"no heading for #{anchor}")


def rows(part: str) -> list[list[str]]:
    """The cells of all rows of a section's first table, without its head."""
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_every_figure_at_a_glance_names_what_made_it() -> None:
    made = [row[-1].strip("`") for row in rows(section(PAGE, "at-a-glance"))]
    assert len(made) > 10
    known = SCRIPTS | {f"weft reproduce {name}" for name in NAMES}
    assert [name for name in made if name not in known] == []


def test_every_figure_of_the_readme_leads_to_the_script_that_made_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = rows(section(readme, "three-figures"))
    assert len(table) == 3
    for what, _ in table:
        ((page, _, anchor),) = re.findall(r"\]\((docs/[\w-]+\.md)(#([\w-]+))?\)", what)
        text = (ROOT / page).read_text(encoding="utf-8")
        named = set(re.findall(r"(\w+\.py)", section(text, anchor) if anchor else text))
        assert named & SCRIPTS, what


def test_every_benchmark_is_on_the_page() -> None:
    named = set(re.findall(r"\b(\w+\.py)\b", PAGE))
    assert SCRIPTS - HELPERS - named == set()
    assert {f"{name}" for name in re.findall(r"`(\w+\.py)`", PAGE)} <= SCRIPTS
