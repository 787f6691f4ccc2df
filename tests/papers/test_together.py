"""`weft reproduce all`: one page, taken up again where it was stopped."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft import cli, papers
from weft.commands.app import app
from weft.errors import InputError
from weft.papers import registry, together
from weft.papers.claims import Claim, Reproduction, Table
from weft.papers.page import page
from weft.papers.together import Work, keep, packed

assert cli.main  # importing the command line has registered every command
PNG = b"\x89PNG not really"


class Desk:
    """Two small papers. The second stops its first reader with Ctrl-C."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.stop = True

    def first(self, out: Path, quick: bool, tell: registry.Tell) -> Reproduction:
        return self.write("first", out)

    def second(self, out: Path, quick: bool, tell: registry.Tell) -> Reproduction:
        if self.stop:
            raise KeyboardInterrupt
        return self.write("second", out)

    def write(self, name: str, out: Path) -> Reproduction:
        self.done.append(name)
        (out / "figure-1.png").write_bytes(PNG)
        claim = Claim("a", "x < y & z", 2.0, 2.1, "x", True, "because <b>")
        table = Table("Table 1", ("k", "v"), (("one", "1"),))
        return Reproduction(name, (claim,), (str(out / "figure-1.png"),), (table,))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk()
    known = {}
    for name in ("first", "second"):
        known[name] = registry.Paper(name, f"The {name} paper", getattr(desk, name))
        module = f"weft.papers.{name}.paper"
        monkeypatch.setitem(sys.modules, f"weft.papers.{name}", types.ModuleType(name))
        monkeypatch.setitem(sys.modules, module, types.ModuleType(name))

    def work_here(name: str, quick: bool) -> Work:
        folder = tmp_path / f"work-{name}"
        return packed(registry.reproduce(name, folder, quick=quick), folder)

    monkeypatch.setattr(together, "work", work_here)
    monkeypatch.setattr(registry, "PAPERS", known)
    monkeypatch.setattr(registry, "NAMES", tuple(known))
    monkeypatch.setattr(papers, "NAMES", tuple(known))
    return desk


def test_it_goes_on_where_it_was_stopped(desk: Desk, tmp_path: Path) -> None:
    words = ["reproduce", "all", "--quick", "--jobs", "1", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, words).exit_code == 130
    desk.stop = False
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert desk.done == ["first", "second"]  # the first was not done again
    assert "first: done before" in done.output
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert text.count("<figure>") == 2
    assert CliRunner().invoke(app, [*words[:2], *words[3:]]).exit_code == 0  # in full: all again
    assert desk.done == ["first", "second", "first", "second"]


def test_the_page_needs_no_other_file_and_escapes_words(desk: Desk, tmp_path: Path) -> None:
    report = desk.write("first", tmp_path)
    text = page([report], quick=True)
    assert "x &lt; y &amp; z" in text
    assert "because &lt;b&gt;" in text
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)


@pytest.mark.usefixtures("desk")
def test_wrong_use_is_refused(tmp_path: Path) -> None:
    for words, says in (
        (["all", "--engine", "slurm://x"], "give local, dask://HOST:PORT or ray://HOST:PORT"),
        (["all", "--engine", "dask://127.0.0.1:1", "--jobs", "2"], "--jobs is for this machine"),
        (["all", "--engine", "dask://127.0.0.1:1"], "no Dask scheduler answers there"),
        (["first", "--jobs", "2"], "are for `weft reproduce all`"),
    ):
        done = CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path)])
        assert done.exit_code == 2, done.output
        assert says in " ".join(done.output.split())


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(
    desk: Desk, tmp_path: Path
) -> None:
    """Seen: all papers were computed first."""
    desk.stop = False
    (tmp_path / "file").touch()
    for paper in ("all", "first"):
        words = ["reproduce", paper, "--quick", "--out", str(tmp_path / "file" / "papers")]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2, done.output
        assert "error: folder" in done.output
    assert desk.done == []


def test_a_workers_file_stays_in_its_folder(tmp_path: Path) -> None:
    for name in ("../up", "/etc/x", ".hidden", "a/b"):
        with pytest.raises(InputError, match="not allowed"):
            keep(Work(Reproduction("p", (), ()), {name: b""}), tmp_path / "p", quick=True)


def test_a_worker_with_another_weft_is_refused(tmp_path: Path) -> None:
    """Its numbers would be recorded as those of this version."""
    with pytest.raises(InputError, match=r"a worker has Weft 0\.0\.0, and this machine"):
        keep(Work(Reproduction("p", (), ()), {}, "0.0.0"), tmp_path / "p", quick=True)
    assert not (tmp_path / "p").exists()
