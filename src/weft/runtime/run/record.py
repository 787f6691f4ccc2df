"""What a run leaves in its folder, and how it is taken up again.

    plan.json  weights.safetensors  optimizer.safetensors  metrics.jsonl  timeline.json  run.json
    ema.safetensors where running means of the weights were asked for

Every file is written beside its place and then moved there: a run that is cut off in the middle leaves
the previous state whole.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from weft.errors import InputError
from weft.plans.plan import Plan
from weft.program.timeline import Timeline


class RunFile(Struct, frozen=True):
    """Where a run stands."""

    model: str
    strategy: str
    steps: int  # minibatches done
    batch: int
    seed: int
    optimizer: str = ""  # its name; empty in folders of older versions


class Saved(Struct, frozen=True):
    """What a run's folder holds of an earlier run."""

    run: RunFile
    weights: dict[str, Any]
    optimizer: dict[str, Any]


class Folder:
    """A run's folder; made when the first file is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise InputError(f"--out {path} is a file; give a folder")

    def write(self, name: str, data: bytes) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        beside = self.path / f".{name}.new"
        beside.write_bytes(data)
        os.replace(beside, self.path / name)

    def save_state(
        self, run: RunFile, weights: dict[str, Tensor], optimizer: dict[str, Tensor]
    ) -> None:
        self.write("weights.safetensors", save({k: v.contiguous() for k, v in weights.items()}))
        self.write("optimizer.safetensors", save({k: v.contiguous() for k, v in optimizer.items()}))
        self.write("run.json", msgspec.json.encode(run))

    def save_averaged(self, weights: dict[str, Tensor]) -> None:
        self.write("ema.safetensors", save({k: v.contiguous() for k, v in weights.items()}))

    def save_plan(self, plan: Plan) -> None:
        self.write("plan.json", msgspec.json.format(msgspec.json.encode(plan), indent=1))

    def save_timeline(self, timeline: Timeline) -> None:
        self.write("timeline.json", msgspec.json.encode(timeline))

    def forget_metrics(self, first: int = 0) -> None:
        """A new run in an old folder begins its own list; a resumed one keeps the lines before `first`."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        rows = [row for row in path.read_bytes().splitlines() if _step_of(row) < first]
        if rows:
            self.write("metrics.jsonl", b"".join(row + b"\n" for row in rows))
        else:
            path.unlink()

    def add_metrics(self, rows: list[dict[str, Any]]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "metrics.jsonl").open("ab") as file:
            for row in rows:
                file.write(msgspec.json.encode(row) + b"\n")

    def load(self) -> Saved:
        """What the last save left; InputError where there is nothing to resume."""
        try:
            run = msgspec.json.decode((self.path / "run.json").read_bytes(), type=RunFile)
            weights = load_file(self.path / "weights.safetensors")
            optimizer = load_file(self.path / "optimizer.safetensors")
        except FileNotFoundError as error:
            missing = f"no {error.filename}" if error.filename else str(error)
            raise InputError(f"nothing to resume in {self.path}: {missing}") from None
        except (msgspec.MsgspecError, SafetensorError, OSError) as error:
            raise InputError(f"cannot resume from {self.path}: {error}") from None
        return Saved(run, weights, optimizer)


def _step_of(row: bytes) -> float:
    """The minibatch of a line; a line that was cut off in the middle is later than all others."""
    try:
        return float(msgspec.json.decode(row)["step"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return math.inf
