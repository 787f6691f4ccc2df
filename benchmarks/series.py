"""A part of regenerate.py: which benchmarks there are, how each is run, and what a stopped series has done.

A series is one call for certain benchmarks. What is done is noted in results/.series-*.jsonl, so that the
same call goes on where it was stopped, as long as the code is the same. When all are done, it is removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# Parts of other benchmarks, and of regenerate.py.
PARTS = {"regenerate", "series", "figures", "two_stages", "torch_rank", "real_nodes", "more_models",
         "other_models", "plus_swarm", "tiny_models"}  # fmt: skip
# How the figures of the pages were made, where that is not the script without arguments; each is one run.
RUNS: dict[str, tuple[str, ...]] = {
    "chaos": ("--table {results}/chaos_many.jsonl", "--faults 8 --jobs 2"),
    "codec_accuracy": ("3 400", "2 150"),
    "decoupled": ("64 5",),
    "fleet_scale": ("--search 5",),
    "fuzz": ("1000000 17",),
    "fuzz_guided": ("600",),
    "loom": ("--seed 1 --draws 100 --runs 6",),
    "models": ("", "--more", "--other"),
    "plus": ("--draws 300",),
    "readiness": ("cost --pairs 10", "flat --steps 3000", "goodput --kills 4"),
    "stitchnet_silent": ("", "--prefer accuracy"),
    "torch_elastic": ("--runs 5 --kills 1",),
}
# Figures of the pages that `weft reproduce PAPER` makes.
PAPERS = ("edgemove", "stitchnet", "decoupled")
# When a run is given up: far more than it takes on a quiet machine with two cores.
LIMIT_MIN = 30.0
LIMITS_MIN = {"chaos": 240.0, "compare": 90.0, "decoupled_run": 60.0, "edgemove_run": 60.0,
              "fleet_scale": 60.0, "hiertrain": 60.0, "models": 120.0, "plus": 240.0, "readiness": 60.0,
              "serving": 90.0, "stitchnet_silent": 60.0, "transformers_split": 60.0, "truth": 90.0,
              "reproduce-decoupled": 240.0, "reproduce-edgemove": 120.0,
              "reproduce-stitchnet": 120.0}  # fmt: skip


def names_in(folder: Path) -> list[str]:
    """All benchmarks: the scripts of a folder, and the papers beside those of Weft."""
    scripts = sorted(path.stem for path in folder.glob("*.py") if path.stem not in PARTS)
    papers = [f"reproduce-{paper}" for paper in PAPERS] if folder == HERE else []
    return scripts + papers


def commands(folder: Path, name: str) -> list[list[str]]:
    """The arguments for Python of each run of a benchmark."""
    if name.startswith("reproduce-"):
        paper = name.removeprefix("reproduce-")
        return [["-m", "weft", "reproduce", paper, "--out", str(folder.parent / "runs" / name)]]
    runs = RUNS.get(name, ("",)) if folder == HERE else ("",)
    script = str(folder / f"{name}.py")
    return [[script, *run.format(results=folder / "results").split()] for run in runs]


def limit_min(name: str) -> float:
    """Minutes after which one run of a benchmark is given up."""
    return LIMITS_MIN.get(name, LIMIT_MIN)


@dataclass(frozen=True)
class Done:
    """A benchmark that has worked in this series."""

    name: str
    news: str
    code: str


class Series:
    """What this call has done so far, on disk after each benchmark."""

    def __init__(self, folder: Path, names: Sequence[str], fresh: bool) -> None:
        self._code = digest([*folder.glob("*.py"), *(folder.parent / "src").rglob("*.py")])
        key = hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
        self._path = folder / "results" / f".series-{key}.jsonl"
        self._done: dict[str, Done] = {}
        if fresh:
            self._path.unlink(missing_ok=True)
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            try:
                done = Done(**json.loads(line))
            except (ValueError, TypeError):  # the last line of a call that was cut off
                continue
            if done.code == self._code:
                self._done[done.name] = done

    def of(self, name: str) -> Done | None:
        return self._done.get(name)

    def add(self, name: str, news: str) -> None:
        self._done[name] = Done(name, news, self._code)
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(self._done[name])) + "\n")

    def end(self) -> None:
        """All is done: the next call begins anew."""
        self._path.unlink(missing_ok=True)


def digest(files: Iterable[Path]) -> str:
    """Of the files that a benchmark's figures depend on."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{path.name}\0".encode() + path.read_bytes())
    return total.hexdigest()[:16]


HERE = Path(__file__).resolve().parent
