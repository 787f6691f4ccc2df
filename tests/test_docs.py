"""The pages say what is there: the reading path is short enough, every link leads somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST_PATH = 1500  # lines of code


@pytest.fixture(autouse=True)
def _docs_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])


def test_the_life_of_a_minibatch_is_read_in_1500_lines() -> None:
    import count_path

    path = list(count_path.stops())  # fails where a file or a name is not there
    assert len(path) > 10
    assert sum(stop.lines for stop in path) <= LONGEST_PATH
    for stop in path:
        assert abs(stop.said - stop.lines) <= 5 + stop.lines // 4, (stop.file.name, stop.lines)


def test_every_relative_link_leads_to_a_file_and_a_heading() -> None:
    import check_links

    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    assert [message for page in pages for message in check_links.dead_links(page)] == []


def test_the_page_of_commands_is_what_the_command_line_says() -> None:
    import write_commands

    assert write_commands.PAGE.read_text(encoding="utf-8") == write_commands.page()


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    wrong = []
    for page in [ROOT / "README.md", ROOT / "SECURITY.md", *ROOT.glob("docs/**/*.md")]:
        cells, fenced = 0, False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.startswith("```")
            if fenced or not line.startswith("|"):
                cells = 0
                continue
            count = len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line)))
            cells = cells or count
            if count != cells:
                wrong.append((page.name, number, line[:60]))
    assert wrong == []
