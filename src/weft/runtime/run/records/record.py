"""What a run leaves in its folder, and how it is taken up again.

    plan.json  weights.safetensors  optimizer.safetensors  metrics.jsonl  timeline.json  run.json
    changes.json, every change of plan (weft.runtime.run.records.plan_changes)
    ema.safetensors where running means of the weights were asked for
    peers.safetensors every peer's weights, where each device trains a network of its own
    best.safetensors the weights of the best evaluation, where that was asked for
    saves/     the last two saves, each one whole (weft.runtime.run.records.saves)

The tensor files and run.json at the top are those of the newest save, for people. A run is resumed from
`saves`; from the top only if somebody has removed `saves`.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import save
from torch import Tensor

from weft.errors import InputError
from weft.plans.plan import Plan
from weft.program.timeline import Timeline
from weft.reading import read_bounded
from weft.runtime.run.records.saves import (
    MAX_ROWS,
    MAX_RUN_FILE,
    OPTIMIZER,
    PARTS,
    RUN_FILE,
    WEIGHTS,
    NotWhole,
    RunFile,
    Saved,
    Saves,
    Stamp,
    read_save,
    stamp_of,
    write_through,
)
from weft.runtime.run.watch.evaluation import Evaluation
from weft.runtime.wire.limits import memory_bytes
from weft.stored import tensors_of

PLAN_FILE = "plan.json"
AVERAGED = "ema.safetensors"
BEST = "best.safetensors"


class Folder:
    """A run's folder; made when the first file is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.saves = Saves(path / "saves")
        if path.exists() and not path.is_dir():
            raise InputError(f"--out {path} is a file; give a folder")

    def write(self, name: str, data: bytes) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        beside = self.path / f".{name}.new"
        write_through(beside, data)
        os.replace(beside, self.path / name)

    def save_state(
        self,
        run: RunFile,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        averaged: Mapping[str, Tensor] | None = None,
        parts: Mapping[str, Tensor] | None = None,
    ) -> None:
        """A new save, which the files at the top show from now on. The last two saves are kept. OSError where
        the disk does not take it; no earlier save is lost then."""
        tensors = {WEIGHTS: weights, OPTIMIZER: optimizer}
        if averaged is not None:
            tensors[AVERAGED] = averaged
        if parts:
            tensors[PARTS] = parts
        self._show(self.saves.add(run, tensors), tensors)
        self.saves.keep_newest()

    def _show(self, save: Path, names: Mapping[str, object]) -> None:
        """The files of a save appear at the top, run.json last. They take no room on the disk of their own,
        where it knows hard links."""
        for name in {AVERAGED, PARTS} - names.keys():
            (self.path / name).unlink(missing_ok=True)  # of an earlier save
        for name in (*names, RUN_FILE):
            beside = self.path / f".{name}.new"
            beside.unlink(missing_ok=True)
            try:
                os.link(save / name, beside)
            except OSError:
                mode = (save / name).stat().st_mode & 0o777
                os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
                shutil.copyfile(save / name, beside)
            os.replace(beside, self.path / name)

    def save_plan(self, plan: Plan) -> None:
        self.write(PLAN_FILE, msgspec.json.format(msgspec.json.encode(plan), indent=1))

    def save_timeline(self, timeline: Timeline) -> None:
        self.write("timeline.json", msgspec.json.encode(timeline))

    def save_best(self, weights: Mapping[str, Tensor]) -> None:
        """The weights of the best evaluation so far."""
        self.write(BEST, save({name: tensor.contiguous() for name, tensor in weights.items()}))

    def best(self) -> dict[str, Tensor] | None:
        """The weights of the best evaluation of an earlier run, if they are there."""
        path = self.path / BEST
        return tensors_of(path, "file", memory_bytes()) if path.exists() else None

    def forget_best(self) -> None:
        """A new run in an old folder has no best weights yet."""
        (self.path / BEST).unlink(missing_ok=True)

    def evaluations(self) -> list[Evaluation]:
        """All evaluations in metrics.jsonl."""
        lines = [msgspec.json.decode(row) for row in self._metrics() if _step_of(row) < math.inf]
        return [
            Evaluation(row["step"] + 1, row["evaluated"]) for row in lines if "evaluated" in row
        ]

    def forget_metrics(self, first: int = 0) -> None:
        """A new run in an old folder begins its own list; a resumed one keeps the lines before `first`."""
        rows = [row for row in self._metrics() if _step_of(row) < first]
        if rows:
            self.write("metrics.jsonl", b"".join(row + b"\n" for row in rows))
        else:
            (self.path / "metrics.jsonl").unlink(missing_ok=True)

    def steps_with_loss(self) -> set[int]:
        """The minibatches whose losses are in metrics.jsonl."""
        lines = (msgspec.json.decode(row) for row in self._metrics() if _step_of(row) < math.inf)
        return {int(row["step"]) for row in lines if "loss" in row}

    def _metrics(self) -> list[bytes]:
        """The lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        return read_bounded(path, MAX_ROWS, "file").splitlines() if path.exists() else []

    def add_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Adds all rows, or none where the disk does not take them (OSError)."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / "metrics.jsonl"
        before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("ab") as file:
                file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, before)  # no half line, to which the next one would be added
            raise

    def load(self) -> Saved:
        """The newest whole save; InputError where there is nothing to resume."""
        saves = self.saves.all()
        if saves:
            self._check_shown(saves)
            return self.saves.newest()
        if not (self.path / RUN_FILE).exists():
            raise InputError(f"nothing to resume in {self.path}: no saves, and no {RUN_FILE}")
        try:
            return read_save(self.path)
        except NotWhole as error:
            raise InputError(f"cannot resume from {self.path}: {error}") from None

    def _check_shown(self, saves: list[Path]) -> None:
        """Files at the top that no save has were put there by somebody: resuming would not read them, and
        the next save would replace them."""
        try:
            manifests = [read_bounded(save / RUN_FILE, MAX_RUN_FILE, "file") for save in saves]
            shown = read_bounded(self.path / RUN_FILE, MAX_RUN_FILE, "file")
            stamps = [msgspec.json.decode(data, type=RunFile).files for data in manifests]
        except (InputError, msgspec.MsgspecError):
            return
        if (
            shown not in manifests
        ):  # of an earlier run; this one was cut off before its files were shown
            return
        for name in (WEIGHTS, OPTIMIZER):
            path = self.path / name
            if not path.exists() or any(_same(path, save / name) for save in saves):
                continue
            if not _is_one_of(path, [files[name] for files in stamps if name in files]):
                raise InputError(
                    f"cannot resume: {path} is of none of the saves in {self.saves.path}, which "
                    "are what a run goes on with; remove it, or give another --out"
                )


def _is_one_of(path: Path, stamps: list[Stamp]) -> bool:
    """Whether a file is the same as one of those; a file of another size is not read."""
    size = path.stat().st_size
    fits = size <= memory_bytes() and size in [stamp.bytes for stamp in stamps]
    return fits and stamp_of(path.read_bytes()) in stamps


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


def _step_of(row: bytes) -> float:
    """The minibatch of a line; a line that was cut off in the middle is later than all others."""
    try:
        return float(msgspec.json.decode(row)["step"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return math.inf
