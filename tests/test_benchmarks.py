"""Benchmarks are run seldom. Here each is imported, and every name that it takes from Weft is looked up."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
FILES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_benchmark_can_be_imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))  # some share a module with another
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look themselves up there
    spec.loader.exec_module(module)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_of_weft_is_there(path: Path) -> None:
    """Also what is imported inside a function, which importing the benchmark does not show."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "weft":
                    importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "weft":
            assert node.module is not None
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("MSE", "as a mean"), ("ignore_index and a regulariser", "with totals"),
        ("RMSE", "refused: its operator sqrt of a sum of outputs is not linear"),
    ],
)  # fmt: skip
def test_the_table_of_losses_says_how_pieces_add_up(
    name: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python benchmarks/losses.py` prints all 44."""
    monkeypatch.syspath_prepend(str(FOLDER))
    losses = importlib.import_module("losses")
    assert len(losses.CASES) == 44
    assert losses.verdict(losses.CASES[name]) == verdict


@pytest.fixture
def regenerate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("regenerate")


def test_regenerating_says_which_figures_changed(
    regenerate: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The benchmark prints what the file `said` holds, so it is another one each time."""
    said = tmp_path / "said.txt"
    (tmp_path / "small.py").write_text(f"print(open({str(said)!r}).read())\n")
    arguments = ["--folder", str(tmp_path)]

    def news(text: str) -> str:
        said.write_text(text)
        assert regenerate.main(arguments) == 0
        return capfd.readouterr().out.split("== what changed\n")[1]

    assert "recorded for the first time (3 figures)" in news("resnet18  1.00 ms  2.0x\nall 5 s")
    assert "as recorded (3 figures" in news("resnet18  1.05 ms  2.0x\nall 5 s")
    told = news("resnet18  1.04 ms  3.0x\nothers 5 s")
    assert "resnet18 1.04 ms 3x   (2 -> 3)" in told
    assert "new: others 5 s" in told
    assert "gone: all 5 s" in told
    assert "as recorded" in news(
        "resnet18  1.04 ms  3.0x\nothers 5 s"
    )  # the news is the record now
    (tmp_path / "small.py").write_text("raise SystemExit(3)\n")
    assert regenerate.main(arguments) == 1
    assert "exit code 3; the record is as before" in capfd.readouterr().out
    assert "3.0x" in (tmp_path / "results" / "small.txt").read_text()


def test_regenerating_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """Ctrl-C ends the benchmark that runs, and the next call does not repeat those before it."""
    begun = tmp_path / "begun"
    note = f"open({str(begun)!r}, 'a').write(__file__[-4])\n"
    (tmp_path / "a.py").write_text(f"{note}print('a 1 s')\n")
    wait = tmp_path / "wait"
    wait.touch()
    (tmp_path / "b.py").write_text(
        f"{note}import os, time\nwhile os.path.exists({str(wait)!r}): time.sleep(0.05)\nprint('b 2 s')\n"
    )
    command = [sys.executable, str(FOLDER / "regenerate.py"), "--folder", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while not begun.exists() or begun.read_text() != "ab":
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: 1 of 2 are left" in said
    assert not (tmp_path / "results" / "b.txt").exists()
    wait.unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert begun.read_text() == "abb"
    assert "== b: 2 of 2" in done.stdout
    assert "a: recorded for the first time" in done.stdout  # the news of before the stop
    subprocess.run(command, capture_output=True, timeout=60)  # all was done: it begins anew
    assert begun.read_text() == "abbab"


def test_a_benchmark_that_does_not_end_is_given_up(
    regenerate: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "endless.py").write_text("import time\nprint('1 s', flush=True)\ntime.sleep(600)\n")
    (tmp_path / "small.py").write_text("print('2 s')\n")
    assert regenerate.main(["--folder", str(tmp_path), "--limit", "0.05"]) == 1
    said = capfd.readouterr().out
    assert "endless: it did not end within 0.05 min; the record is as before" in said
    assert "small: recorded for the first time" in said
    assert not (tmp_path / "results" / "endless.txt").exists()


def test_regenerating_says_which_figures_of_the_pages_were_not_printed(
    regenerate: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "benchmarks"
    (tmp_path / "docs").mkdir()
    folder.mkdir()
    (tmp_path / "README.md").write_text(
        "| what | figure |\n|---|---|\n"
        "| speed of links, [table](docs/page.md#smallpy-how-fast) | 83 to 85% |\n"
    )
    (tmp_path / "docs" / "page.md").write_text(
        "## At a glance\n\n| what | figure | made by |\n|---|---|---|\n"
        "| links on a radio | 48.6% | `small.py` |\n| another | 3.3 s | `other.py` |\n\n"
        "## small.py: how fast?\n\n| network | time |\n|---|---|\n| lenet5 | 12.1 ms |\n"
        "| resnet8 | 2,400 ms |\n\n"
        "## Others\n\nNothing, 7 s.\n\nBy `benchmarks/small.py`: 0.9 s with 3 devices.\n"
    )
    (folder / "small.py").write_text(
        "print('speed of links 84.1 %\\nradio links 60%\\nlenet5 0.0121 s')\n"
        "print('resnet8 3.1 s, 12.1 ms\\nall 0.9')\n"
    )
    assert regenerate.main(["--folder", str(folder)]) == 0
    said = capfd.readouterr().out.split("== what changed\n")[1]
    missing = [line.split(": ", 2)[1:] for line in said.splitlines() if "not printed: " in line]
    assert [(place, what.split("   ")[0]) for place, what in missing] == [
        ("docs/page.md:5", "48.6 %"), ("docs/page.md:13", "2,400 ms"),
    ]  # fmt: skip
    assert "6 figures on the pages, not all printed" in said


def test_every_figure_at_a_glance_is_found_by_the_one_who_compares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each row of the page and of the README belongs to a benchmark that `make bench` runs."""
    monkeypatch.syspath_prepend(str(FOLDER))
    places, names_in = (
        importlib.import_module("figures").places,
        importlib.import_module("series").names_in,
    )
    root = FOLDER.parent
    rows = {(p.page, p.line) for name in names_in(FOLDER) for p in places(root, name) if p.is_row}
    page = (root / "docs" / "benchmarks.md").read_text(encoding="utf-8").splitlines()
    begin = page.index("## At a glance") + 1
    end = next(n for n in range(begin, len(page)) if page[n].startswith("## "))
    glance = {("docs/benchmarks.md", n + 1) for n in range(begin, end) if "`" in page[n][-40:]}
    assert len(glance) > 10
    assert glance - rows == set()
    readme = (root / "README.md").read_text(encoding="utf-8").splitlines()
    figures = {("README.md", n) for n, line in enumerate(readme, 1) if line.startswith("| ")}
    assert figures - {("README.md", min(n for _, n in figures))} - rows == set()


def test_regenerating_refuses_a_wrong_name(
    regenerate: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        regenerate.main(["nothing_like_it"])
    assert ended.value.code == 2
    assert "there is no benchmark nothing_like_it" in capfd.readouterr().err
