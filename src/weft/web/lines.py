"""Files of JSON lines that grow while they are read."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

MOST_BYTES = 8 << 20  # that one look reads; the next look goes on
POINTS = 400  # of a curve on the page
EVENTS = 200  # that are shown
KINDS, MAX_KIND, OTHER = 100, 64, "other"  # of events that are counted, and the letters of one


class Lines:
    """The new whole lines of a file. A file that is shorter than before, or another one, is read anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = 0
        self._file: tuple[int, int] | None = None

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether earlier lines no longer count, and the lines since the last look."""
        try:
            status = self.path.stat()
            file = status.st_dev, status.st_ino
            anew = file != self._file or status.st_size < self._place
            self._file, self._place = file, 0 if anew else self._place
            if status.st_size == self._place:
                return anew, []
            with self.path.open("rb") as opened:
                opened.seek(self._place)
                data = opened.read(MOST_BYTES)
        except OSError:
            anew, self._file, self._place = self._file is not None, None, 0
            return anew, []
        whole = data[: data.rfind(b"\n") + 1]
        self._place += len(whole)
        return anew, [row for line in whole.splitlines() if (row := _row(line)) is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    """A line that is no JSON object was cut off, and is left out."""
    try:
        row = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        return None
    return row if isinstance(row, dict) else None


class Curves:
    """The losses, learning rates and evaluations of metrics.jsonl, thin enough to be drawn."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)
        self._forget()

    def _forget(self) -> None:
        self._steps, self._losses, self._rates = array("d"), array("d"), array("d")
        self._tests: dict[str, list[tuple[int, float]]] = {}

    @property
    def done(self) -> int:
        """Minibatches done."""
        return int(self._steps[-1]) + 1 if self._steps else 0

    @property
    def loss(self) -> float | None:
        """The newest loss."""
        return self._losses[-1] if self._losses else None

    def read(self) -> bool:
        """Takes the new lines. Whether there were any."""
        anew, rows = self._lines.read()
        if anew:
            self._forget()
        for row in rows:
            self._add(row)
        return anew or bool(rows)

    def _add(self, row: dict[str, Any]) -> None:
        step = _number(row.get("step"))
        if step is None:
            return
        loss = _number(row.get("loss"))
        if loss is not None:
            self._steps.append(step)
            self._losses.append(loss)
            rate = _number(row.get("lr"))
            self._rates.append(np.nan if rate is None else rate)
        tests = row.get("evaluated")
        for name, value in tests.items() if isinstance(tests, dict) else ():
            known = str(name) in self._tests or len(self._tests) < KINDS
            if known and (number := _number(value)) is not None:
                self._tests.setdefault(str(name), []).append((int(step) + 1, number))

    def document(self) -> dict[str, Any]:
        """At most `POINTS` points of each curve: means of the minibatches between two points, and their
        smallest and largest loss."""
        pieces = np.array_split(np.arange(len(self._steps)), max(1, min(POINTS, len(self._steps))))
        steps, losses, rates = (np.array(a) for a in (self._steps, self._losses, self._rates))
        groups = [piece for piece in pieces if len(piece)]
        return {
            "step": [int(steps[g[-1]]) for g in groups],
            "loss": [_finite(losses[g].mean()) for g in groups],
            "low": [_finite(losses[g].min()) for g in groups],
            "high": [_finite(losses[g].max()) for g in groups],
            "lr": [_finite(rates[g[-1]]) for g in groups],
            "tests": {name: rows[-POINTS:] for name, rows in self._tests.items()},
        }


class Events:
    """The newest events of events.jsonl."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)
        self.rows: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self.counts: Counter[str] = Counter()  # of all events, by kind

    def read(self) -> bool:
        """Takes the new lines. Whether there were any."""
        anew, rows = self._lines.read()
        if anew:
            self.rows.clear()
            self.counts.clear()
        self.rows.extend(rows)
        for row in rows:  # a file from a stranger may have a kind in each line
            kind = str(row.get("kind", ""))[:MAX_KIND]
            self.counts[kind if kind in self.counts or len(self.counts) < KINDS else OTHER] += 1
        return anew or bool(rows)


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _finite(value: float) -> float | None:
    """Five significant digits; None for what JSON cannot say."""
    return float(f"{value:.5g}") if np.isfinite(value) else None
