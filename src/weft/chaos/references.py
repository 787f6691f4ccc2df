"""Runs in which nothing goes wrong, kept for later series: they do not depend on the seed of the faults.

    references = References(Path("references"))
    references.recall(trial, Path(trial.out))       # row and weights; None where it was not tried yet
    references.keep(trial, row)

A reference counts for the same trial, the same code of Weft, the same files of the user and the same version
of PyTorch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import msgspec
import torch

from weft.chaos.report import Row
from weft.chaos.trial import Trial
from weft.runtime.run.records.saves import WEIGHTS

ROW = "row.json"


class References:
    """A folder with a folder for each reference. Several processes may use it at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, trial: Trial, out: Path) -> Row | None:
        """The row of an earlier run of this trial; its weights are put into `out`."""
        place = self._folder / key_of(trial)
        if not (place / ROW).exists():
            return None
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place / WEIGHTS, out / WEIGHTS)
        return msgspec.json.decode((place / ROW).read_bytes(), type=Row)

    def keep(self, trial: Trial, row: Row) -> None:
        """Keeps a run that has ended: its row, and the weights in its folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
        try:
            shutil.copyfile(Path(trial.out) / WEIGHTS, beside / WEIGHTS)
            (beside / ROW).write_bytes(msgspec.json.encode(row))
            os.rename(beside, self._folder / key_of(trial))
        except OSError:  # another process has kept it meanwhile, or the disk is full
            shutil.rmtree(beside, ignore_errors=True)


def key_of(trial: Trial) -> str:
    """The same for trials that must end with the same weights."""
    plain = msgspec.json.encode(msgspec.structs.replace(trial, out=""))
    total = hashlib.sha256(plain)
    total.update(_code().encode())
    for text in (trial.model, trial.data):
        file = Path(text.rpartition(":")[0] or text)
        if file.is_file():
            total.update(file.read_bytes())
    return f"{trial.strategy}-{total.hexdigest()[:16]}"


@cache
def _code() -> str:
    """Weft's own files, and the version of PyTorch."""
    total = hashlib.sha256(torch.__version__.encode())
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()
