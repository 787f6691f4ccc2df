"""Saves of a run. Each save is a folder that becomes visible whole, by one rename.

    saves = Saves(Path("runs/first/saves"))
    saves.add(run, {"weights.safetensors": weights, "optimizer.safetensors": memory})
    saved = saves.newest()                      # the newest save that is whole, or InputError

A save is written to a folder beside, brought to the disk (fsync), and renamed to `NUMBER-ID`: a number that
counts up, and the id of the run. Its run.json has the size and the digest of every other file, and each
tensor file has its run and its minibatch inside. So a file that was cut off or exchanged is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from weft.errors import InputError
from weft.reading import read_bounded
from weft.runtime.wire.limits import memory_bytes
from weft.stored import tensors_in

KEPT = 2  # saves in a folder
RUN_FILE = "run.json"
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
PARTS = "peers.safetensors"
MAX_RUN_FILE = 16 << 20
MAX_ROWS = 1 << 30  # bytes of a list of metrics or events
SPARE = (
    1 << 20
)  # bytes that a wrong file may have beyond its save's, so that it can be said what it is
NAME = re.compile(r"(\d{6,})-(\w+)")


class Stamp(Struct, frozen=True):
    """By what a file is known again."""

    bytes: int
    sha256: str


class RunFile(Struct, frozen=True):
    """Where a run stands."""

    model: str
    strategy: str  # that was asked for; after a loss another one may have planned
    steps: int  # minibatches done
    batch: int
    seed: int
    optimizer: str = ""  # its name
    precision: str = "float32"  # of products
    id: str = "run"  # of the run; a resumed run keeps it
    files: dict[str, Stamp] = {}
    options: dict[str, str] = {}  # of the strategy
    secret: str = ""  # with which a resumed run gets the copies that nodes keep of this one


class Saved(Struct, frozen=True):
    """What a folder holds of an earlier run."""

    run: RunFile
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    parts: dict[str, Tensor] = {}  # the weights of devices with networks of their own
    passed_over: str = ""  # why a newer save was not taken


class NotWhole(Exception):
    """A save that is torn, or put together from several; its text says how it was noticed."""


class Saves:
    """The saves in one folder; made when the first save is written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[Path]:
        """The saves, the newest one last."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            names = [n.name for n in self.path.iterdir() if NAME.fullmatch(n.name)]
            return [self.path / n for n in sorted(names, key=_number)]
        return []

    def add(self, run: RunFile, tensors: Mapping[str, Mapping[str, Tensor]]) -> Path:
        """Writes a save. OSError where that is not possible; then all saves are as they were."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._sweep()
        before = self.all()
        number = _number(before[-1].name) + 1 if before else 1
        place, beside = self.path / f"{number:06d}-{run.id}", self.path / f".{number:06d}.new"
        try:
            _write_save(beside, run, tensors)
            os.rename(beside, place)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)  # it may be what filled the disk
            raise
        sync(self.path)
        return place

    def keep_newest(self) -> None:
        """Removes all saves but the last two."""
        for path in self.all()[:-KEPT]:
            # Renamed first: a save that is half removed is no save.
            gone = path.with_name(f".{path.name}.old")
            os.rename(path, gone)
            shutil.rmtree(gone, ignore_errors=True)

    def newest(self) -> Saved:
        """The newest save that is whole, if it is of the same run as the newest one."""
        reasons: list[str] = []
        saves = self.all()[::-1]
        for path in saves:
            if _id(path) != _id(saves[0]):
                reasons.append(f"{path.name} is of another run")
                continue
            try:
                saved = read_save(path)
                if saved.run.id != _id(path):
                    raise NotWhole(f"its {RUN_FILE} is of another run, {saved.run.id}")
            except NotWhole as error:
                reasons.append(f"{path.name} is not whole: {error}")
                continue
            return msgspec.structs.replace(saved, passed_over="; ".join(reasons))
        raise InputError(f"cannot resume from {self.path}: {'; '.join(reasons) or 'no save'}")

    def _sweep(self) -> None:
        """Removes what a process that was killed has left of a save."""
        for path in [*self.path.glob(".*.new"), *self.path.glob(".*.old")]:
            shutil.rmtree(path, ignore_errors=True)


def _number(name: str) -> int:
    return int(name.split("-")[0])


def _id(path: Path) -> str:
    return path.name.split("-")[1]


def check_like(folder: Path, saved: RunFile, asked: RunFile) -> None:
    """InputError where a run cannot go on with a save: it would compute something else than before."""
    for option in ("strategy", "batch", "seed", "optimizer", "precision"):
        before, now = getattr(saved, option), getattr(asked, option)
        if before != now:
            raise InputError(
                f"the run in {folder} was trained with {option} {before}, and cannot go on with "
                f"{option} {now}; give --{option} {before}, or another --out"
            )


# --- one save ---------------------------------------------------------------------------------------


def _write_save(path: Path, run: RunFile, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    path.mkdir()
    stamps = {}
    inside = {"run": run.id, "steps": str(run.steps)}
    for name, values in tensors.items():
        data = tensors_to_bytes({n: t.contiguous() for n, t in values.items()}, inside)
        stamps[name] = stamp_of(data)
        write_through(path / name, data)
    manifest = msgspec.structs.replace(run, files=stamps)
    write_through(path / RUN_FILE, msgspec.json.encode(manifest), 0o600)  # it holds a secret
    sync(path)


def read_save(path: Path) -> Saved:
    """The save in a folder. NotWhole where a file is missing, cut off, or of another save."""
    try:
        run = msgspec.json.decode(read_bounded(path / RUN_FILE, MAX_RUN_FILE, "file"), type=RunFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InputError) as error:
        raise NotWhole(f"{RUN_FILE} cannot be read ({error})") from None
    names = (WEIGHTS, OPTIMIZER, *([PARTS] if PARTS in run.files else []))
    tensors = {name: _read_tensors(path, name, run) for name in names}
    return Saved(run, tensors[WEIGHTS], tensors[OPTIMIZER], tensors.get(PARTS, {}))


def _read_tensors(path: Path, name: str, run: RunFile) -> dict[str, Tensor]:
    stamp = run.files.get(name)
    if stamp is None:
        raise NotWhole(
            f"{RUN_FILE} has no size and no digest of {name}; an older version of Weft wrote it"
        )
    try:
        data = read_bounded(path / name, min(stamp.bytes + SPARE, memory_bytes()), "file")
    except InputError as error:
        raise NotWhole(f"{name} cannot be read ({error})") from None
    if stamp_of(data) != stamp:
        raise NotWhole(_difference(name, data, run, stamp))
    try:
        return tensors_in(data)
    except InputError as error:
        raise NotWhole(f"{name} holds no tensors ({error})") from None


def _difference(name: str, data: bytes, run: RunFile, stamp: Stamp) -> str:
    """In words: why a file does not belong to its save."""
    run_id, steps = _origin(data) or (run.id, run.steps)
    if (run_id, steps) != (run.id, run.steps):
        return (
            f"{name} is of minibatch {steps} of run {run_id}, and {RUN_FILE} of minibatch "
            f"{run.steps} of run {run.id}"
        )
    if len(data) != stamp.bytes:
        return f"{name} has {len(data):,} bytes and was saved with {stamp.bytes:,}"
    return f"{name} is not as it was saved (its digest differs)"


def _origin(data: bytes) -> tuple[str, int] | None:
    """The run and the minibatch inside a tensor file, if its head can be read."""
    try:
        head = msgspec.json.decode(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return head["__metadata__"]["run"], int(head["__metadata__"]["steps"])
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return None


def stamp_of(data: bytes) -> Stamp:
    """The size and the digest of a file's content."""
    return Stamp(len(data), hashlib.sha256(data).hexdigest())


def write_through(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a file and waits until the disk has it. `mode` is for a new file: who may read it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Waits until the disk has a folder's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
