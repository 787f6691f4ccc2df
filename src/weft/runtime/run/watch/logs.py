"""Callbacks that write what happens to files that other programs read.

weft.train(..., callbacks=[CsvLog("runs/first/log.csv"), TensorBoardLog("runs/first/tensorboard")])
"""

from __future__ import annotations

import contextlib
import csv
import warnings
from pathlib import Path
from typing import IO, Any

from weft.errors import InputError
from weft.runtime.run.watch.callbacks import Callback, StepDone
from weft.runtime.run.watch.evaluation import Evaluation


class CsvLog(Callback):
    """A row for each number: step, name, value. Losses are `loss` and `lr`, metrics `test/NAME`.

    The file appears with the first minibatch. A run that is resumed adds its rows to it. If the disk does not
    take a row, the log ends with a warning, and the run goes on.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None
        self._ended = False

    def on_step(self, done: StepDone) -> None:
        self._add([(done.step, "loss", done.loss), (done.step, "lr", done.lr)])

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._add([(evaluation.step, f"test/{name}", v) for name, v in evaluation.values.items()])

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _add(self, rows: list[tuple[int, str, float]]) -> None:
        if self._ended:
            return
        try:
            if self._file is None:
                self._file = self._opened()
            csv.writer(self._file).writerows(rows)
            self._file.flush()
        except OSError as error:
            self._ended = True
            warnings.warn(f"the log {self.path} ends here: {error}", stacklevel=2)

    def _opened(self) -> IO[str]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        begins = not self.path.exists() or not self.path.stat().st_size
        file = self.path.open("a", newline="")
        if begins:
            csv.writer(file).writerow(("step", "name", "value"))
        return file


class TensorBoardLog(Callback):
    """Curves for TensorBoard; needs the package `tensorboard` (`pip install 'weft[log]'`)."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(
                "TensorBoard's files need the package tensorboard: pip install 'weft[log]'"
            ) from None
        writer: Any = SummaryWriter
        self._writer = writer(str(folder))

    def on_step(self, done: StepDone) -> None:
        self._writer.add_scalar("train/loss", done.loss, done.step)
        self._writer.add_scalar("train/lr", done.lr, done.step)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        for name, value in evaluation.values.items():
            self._writer.add_scalar(f"test/{name}", value, evaluation.step)

    def close(self) -> None:
        self._writer.close()
