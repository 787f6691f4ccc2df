"""Runs benchmarks, records what they print, and says which figures changed. `make bench` calls it.

    python benchmarks/regenerate.py                        all benchmarks
    python benchmarks/regenerate.py plus codec_error       these
    python benchmarks/regenerate.py --within 0.2           a figure may move by 20% (default: 10%)

What a benchmark prints goes to results/NAME.txt, with the load of the machine in its first line. It is
compared with what that file held before, line by line: two lines belong together if their words are equal,
and their numbers are the figures. After the last benchmark, each changed figure is listed. A benchmark that
fails keeps its old record. The exit code is 1 if one failed. A changed figure is news, and no failure.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# A number by itself or with its unit, such as 0.58, 1.02x, 49.8%; not the digits of resnet18 or 2-4.
NUMBER = re.compile(r"(?<![\w.-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
PLACE = "\0"  # stands for a figure in the words of a line
Lines = dict[tuple[str, int], list[float]]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="benchmarks; all if none")
    parser.add_argument("--within", type=float, default=0.1, metavar="SHARE")
    parser.add_argument("--not", nargs="*", default=[], dest="without", help="leave these out")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    every = sorted(path.stem for path in given.folder.glob("*.py") if path.stem != "regenerate")
    names = [name for name in given.names or every if name not in given.without]
    unknown = sorted(set(names) - set(every))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are: {', '.join(every)}")
    news, failed = [], 0
    for name in names:
        print(f"== {name}", flush=True)
        words_of_it, worked = regenerate(given.folder, name, given.within)
        news.append(words_of_it)
        failed += not worked
    print("\n".join(["", "== what changed", *news]))
    return 1 if failed else 0


def regenerate(folder: Path, name: str, within: float) -> tuple[str, bool]:
    """Runs one benchmark and replaces its record; what changed in words, and whether it worked."""
    record = folder / "results" / f"{name}.txt"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    head = f"# {os.cpu_count()} cores, a load of {load:.1f} at the start"
    text, code = run([sys.executable, str(folder / f"{name}.py")])
    if code:
        return f"{name}: it ended with exit code {code}; the record is as before", False
    before = record.read_text(encoding="utf-8") if record.exists() else None
    record.parent.mkdir(exist_ok=True)
    record.write_text(f"{head}\n{text}", encoding="utf-8")
    if before is None:
        return f"{name}: recorded for the first time ({count(text)} figures)", True
    changes = compare(before, text, within)
    if not changes:
        return f"{name}: as recorded ({count(text)} figures, within {within:.0%})", True
    return "\n    ".join([f"{name}: changed", *changes]), True


def run(command: list[str]) -> tuple[str, int]:
    """What a program prints, which is also shown while it comes, and its exit code."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(f"{line.rstrip()}\n")
    return "".join(lines), process.returncode


def compare(before: str, after: str, within: float) -> list[str]:
    """A line of words for each line of which a figure moved by more than a share, or that came or went."""
    old, new = lines_of(before), lines_of(after)
    changes = []
    for key, figures in new.items():
        words = key[0]
        if key not in old:
            changes.append(f"new: {filled(words, figures)}")
            continue
        moved = [
            f"{was:g} -> {now:g}"
            for was, now in zip(old[key], figures, strict=True)
            if abs(now - was) > within * max(abs(was), abs(now))
        ]
        if moved:
            changes.append(f"{filled(words, figures)}   ({', '.join(moved)})")
    gone = [filled(key[0], figures) for key, figures in old.items() if key not in new]
    return changes + [f"gone: {line}" for line in gone]


def lines_of(text: str) -> Lines:
    """The figures of each line, by its words. Equal lines are counted."""
    lines: Lines = {}
    seen: Counter[str] = Counter()
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        words = " ".join(NUMBER.sub(PLACE, line).split())
        figures = [float(number.replace(",", "")) for number in NUMBER.findall(line)]
        lines[words, seen[words]] = figures
        seen[words] += 1
    return lines


def filled(words: str, figures: list[float]) -> str:
    """The line again, with its figures."""
    rest = iter(figures)
    return re.sub(PLACE, lambda _: f"{next(rest, 0.0):g}", words)


def count(text: str) -> int:
    return sum(len(figures) for figures in lines_of(text).values())


if __name__ == "__main__":
    sys.exit(main())
