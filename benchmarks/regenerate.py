"""Runs benchmarks, records what they print, and says which figures changed. `make bench` calls it.

    python benchmarks/regenerate.py                        all benchmarks
    python benchmarks/regenerate.py plus codec_error       these
    python benchmarks/regenerate.py --within 0.2           a figure may move by 20% (default: 10%)
    python benchmarks/regenerate.py --list                 what there is, how it is run, and its limit of time
    python benchmarks/regenerate.py --look                 runs nothing: the records beside the pages

What a benchmark prints goes to results/NAME.txt, with the load of the machine in its first line. It is
compared with what that file held before, line by line: two lines belong together if their words are equal,
and their numbers are the figures. It is also compared with the README and the pages (figures.py says how).
After the last benchmark, each changed figure is listed, and each figure of a page that was not printed.

A call that is stopped goes on where it was if it is repeated with the same code; --fresh begins anew. A
benchmark that fails, or does not end within its limit, keeps its old record; the next call tries it again.
The exit code is 1 if one failed, and 130 after Ctrl-C. A changed figure is news, and no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where another file imports this one

from figures import absent, places
from series import Series, commands, limit_min, names_in

FOLDER = Path(__file__).resolve().parent
STOP_S = 20.0  # how long a benchmark may take to end its processes
# A number by itself or with its unit, such as 0.58, 1.02x, 49.8%; not the digits of resnet18 or 2-4.
NUMBER = re.compile(r"(?<![\w.-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
PLACE = "\0"  # stands for a figure in the words of a line
Lines = dict[tuple[str, int], list[float]]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="benchmarks; all if none")
    parser.add_argument("--within", type=float, default=0.1, metavar="SHARE")
    parser.add_argument("--limit", type=float, metavar="MINUTES", help="of each run, for all alike")
    parser.add_argument("--fresh", action="store_true", help="forget what a stopped call has done")
    parser.add_argument("--list", action="store_true", help="run nothing; say what there is")
    parser.add_argument("--look", action="store_true", help="run nothing; compare with the pages")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    every = names_in(given.folder)
    names = given.names or every
    unknown = sorted(set(names) - set(every))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are: {', '.join(every)}")
    if given.list:
        print("\n".join(told for name in names for told in _listed(given.folder, name)))
        return 0
    if given.look:
        print("\n".join(_looked(given.folder, name, given.within) for name in names))
        return 0
    return _all(given, names)


def _all(given: argparse.Namespace, names: list[str]) -> int:
    """Runs what is left of a series; then the news of all of it."""
    series = Series(given.folder, names, given.fresh)
    news, failed, begin = [], 0, time.monotonic()
    try:
        for n, name in enumerate(names, 1):
            earlier = series.of(name)
            if earlier is not None:
                news.append(earlier.news)
                continue
            limit = given.limit or limit_min(name)
            print(f"== {name}: {n} of {len(names)}, {(time.monotonic() - begin) / 60:.0f} min so far,"
                  f" at most {limit:g} min for a run", flush=True)  # fmt: skip
            told, worked = regenerate(given.folder, name, given.within, limit * 60)
            news.append(told)
            failed += not worked
            if worked:
                series.add(name, told)
    except KeyboardInterrupt:
        print("\n".join(["", "== what changed, as far as it was run", *news]))
        print(f"stopped: {len(names) - len(news)} of {len(names)} are left; the same call goes on")
        return 130
    print("\n".join(["", "== what changed", *news]))
    if failed:
        print(f"{failed} of {len(names)} did not work; the same call tries them again")
        return 1
    series.end()
    return 0


def _listed(folder: Path, name: str) -> list[str]:
    """How a benchmark is run."""
    runs = commands(folder, name)
    return [f"{name}: {_short(run, folder)}   (at most {limit_min(name):g} min)" for run in runs]


def _short(command: list[str], folder: Path) -> str:
    return " ".join(word.replace(f"{folder.parent}/", "") for word in command)


def regenerate(folder: Path, name: str, within: float, limit_s: float) -> tuple[str, bool]:
    """Runs one benchmark and replaces its record; what changed in words, and whether it worked."""
    record = folder / "results" / f"{name}.txt"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    parts = [f"# {os.cpu_count()} cores, a load of {load:.1f} at the start\n"]
    for command in commands(folder, name):
        text, why = run([sys.executable, *command], limit_s)
        if why:
            return f"{name}: {why}; the record is as before ({_short(command, folder)})", False
        parts += [f"# {_short(command, folder)}\n", text]
    text = "".join(parts)
    before = record.read_text(encoding="utf-8") if record.exists() else None
    record.parent.mkdir(exist_ok=True)
    record.write_text(text, encoding="utf-8")
    beside = _looked(folder, name, within)
    if before is None:
        return f"{name}: recorded for the first time ({count(text)} figures)\n{beside}", True
    changes = compare(before, text, within)
    if not changes:
        return f"{name}: as recorded ({count(text)} figures, within {within:.0%})\n{beside}", True
    return "\n    ".join([f"{name}: changed", *changes]) + f"\n{beside}", True


def _looked(folder: Path, name: str, within: float) -> str:
    """A benchmark's record beside the README and the pages."""
    found = places(folder.parent, name)
    record = folder / "results" / f"{name}.txt"
    if not record.exists():
        return f"  {name}: no record yet; {len(found)} rows and paragraphs of the pages name it"
    text = "\n".join(line for line in record.read_text().splitlines() if not line.startswith("#"))
    total, gone = absent(found, text, within)
    lines = [f"  {name}: {total} figures on the pages, {'all' if not gone else 'not all'} printed"]
    return "\n    not printed: ".join([*lines, *gone])


def run(command: list[str], limit_s: float) -> tuple[str, str]:
    """What a program prints, which is also shown while it comes, and why it did not work if so."""
    lines, late = [], threading.Event()
    environment = {**os.environ, "COLUMNS": "200"}  # tables are not folded
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip

        def give_up() -> None:
            late.set()
            end(process)

        timer = threading.Timer(limit_s, give_up)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(f"{line.rstrip()}\n")
            process.wait()
        except KeyboardInterrupt:
            end(process)
            raise
        finally:
            timer.cancel()
    if late.is_set():
        return "".join(lines), f"it did not end within {limit_s / 60:g} min"
    return "".join(lines), f"it ended with exit code {process.returncode}" * bool(
        process.returncode
    )


def end(process: subprocess.Popen[str]) -> None:
    """Ctrl-C for a benchmark and all that it started; what is still there after a while is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        os.killpg(process.pid, signal.SIGKILL)


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
