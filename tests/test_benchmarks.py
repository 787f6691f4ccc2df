"""Benchmarks are run seldom. Here each is imported, and every name that it takes from Weft is looked up."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
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


def test_regenerating_refuses_a_wrong_name(
    regenerate: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        regenerate.main(["nothing_like_it"])
    assert ended.value.code == 2
    assert "there is no benchmark nothing_like_it" in capfd.readouterr().err
