"""All papers at once: in parallel, taken up again where it was stopped, as one page.

    with engine("local", jobs=2, stop=stop_children) as compute:
        for report in reproduce_all(NAMES, out, quick=True, compute=compute): ...

`engines` has those that do the work. A worker writes a paper's files to a folder of its own and returns their
bytes, so a cluster needs no shared disk.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.errors import InputError, WeftError
from weft.papers.claims import Reproduction
from weft.papers.engines import Compute
from weft.papers.registry import get
from weft.papers.tables import write_texts
from weft.version import __version__

DONE = "reproduction.json"
FILE = re.compile(r"[A-Za-z0-9_.-]{1,100}")  # a worker's file name; nothing that leads elsewhere
LONGEST_S = 24 * 3600.0  # for one paper in full
_children: set[subprocess.Popen[str]] = set()  # that work for this process now


class Work(Struct, frozen=True):
    """A paper's result as it comes back from a worker."""

    reproduction: Reproduction
    files: dict[str, bytes]
    version: str = __version__


class Done(Struct, frozen=True):
    """A paper's result in its folder, and what it is the result of."""

    version: str
    quick: bool
    reproduction: Reproduction


def work(name: str, quick: bool) -> Work:
    """One paper, by a process of its own: some papers start processes, which a worker may not do."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / name
        command = [sys.executable, "-m", "weft", "reproduce", name, "--out", str(folder), "--json"]
        child = subprocess.Popen(
            [*command, *(["--quick"] if quick else [])], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        _children.add(child)
        try:
            said = child.communicate(timeout=LONGEST_S)[1]
        finally:
            child.kill()
            _children.discard(child)
        report = read_done(folder, quick)
        if report is None:
            raise WeftError(f"{name} was not reproduced: {said.strip()[-500:]}")
        return packed(report, folder)


def stop_children() -> None:
    """Ends the papers that this process has under way."""
    for child in list(_children):
        child.terminate()


def packed(report: Reproduction, folder: Path) -> Work:
    """A paper's result with all files of its folder."""
    files = {
        f.name: f.read_bytes() for f in sorted(folder.iterdir()) if f.is_file() and f.name != DONE
    }
    short = tuple(Path(file).name for file in report.files)
    return Work(msgspec.structs.replace(report, files=short), files)


def note_done(report: Reproduction, folder: Path, quick: bool) -> None:
    """Writes the record of a paper that is done to its folder."""
    record = msgspec.json.encode(Done(__version__, quick, report))
    write_texts({folder / DONE: msgspec.json.format(record).decode()})


def reproduce_all(
    names: Iterable[str], out: Path, *, quick: bool, compute: Compute
) -> Iterator[tuple[Reproduction, bool]]:
    """Each paper as it is done, and whether an earlier call had done it. Files go to OUT/PAPER."""
    try:
        from joblib import delayed
    except ImportError:
        raise InputError("reproduce all needs joblib: pip install 'weft[papers]'") from None
    left = []
    for name in names:
        get(name)  # InputError for an unknown name, before any work
        earlier = read_done(out / name, quick)
        if earlier is None:
            left.append(name)
        else:
            yield earlier, True
    for done in compute(delayed(work)(name, quick) for name in left):
        yield keep(done, out / done.reproduction.paper, quick), False


def keep(done: Work, folder: Path, quick: bool) -> Reproduction:
    """Writes what a worker returned. The record comes last: a folder without it is not done."""
    if done.version != __version__:
        raise InputError(f"a worker has Weft {done.version}, and this machine {__version__}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in done.files.items():
            if not FILE.fullmatch(name) or name.startswith("."):
                raise InputError(f"a worker returned a file called {name!r}, which is not allowed")
            (folder / name).write_bytes(data)
        files = tuple(str(folder / name) for name in done.reproduction.files)
        report = msgspec.structs.replace(done.reproduction, files=files)
    except OSError as error:
        raise InputError(f"folder {folder}: {error.strerror or error}") from None
    note_done(report, folder, quick)
    return report


def read_done(folder: Path, quick: bool) -> Reproduction | None:
    """What an earlier call left; None where it did not get so far, or did something else."""
    try:
        record = msgspec.json.decode((folder / DONE).read_bytes(), type=Done)
    except (OSError, msgspec.MsgspecError):
        return None
    same = record.version == __version__ and record.quick == quick
    return record.reproduction if same else None
