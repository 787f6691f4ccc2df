"""The curves of a run: loss, learning rate and evaluations over minibatches. Also while it goes on.

weft.train(..., callbacks=[weft.LiveChart()])         # in a notebook: the curve grows while it trains
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.errors import InputError, WeftError
from weft.report.canvas import sheet
from weft.runtime.run.watch.callbacks import Callback, StepDone
from weft.runtime.run.watch.evaluation import Evaluation

Curves = Mapping[str, Sequence[tuple[int, float]]]
BLUE, ORANGE = "#2f6fde", "#f28e2b"
RATE = "lr"  # not drawn: it has a scale of its own


def draw_curves(curves: Curves, path: str | Path) -> None:
    """Draws the loss, and each evaluation below it. WeftError if there is nothing to draw."""
    shown = {name: points for name, points in curves.items() if points and name != RATE}
    if not shown:
        raise WeftError("there is no minibatch yet: there is nothing to draw")
    with sheet(Path(path), 8, 0.6 + 2.2 * len(shown), [1] * len(shown)) as panels:
        for axes, (name, points) in zip(panels, shown.items(), strict=True):
            steps, values = zip(*points, strict=True)
            evaluated = name not in ("loss", RATE)
            axes.plot(
                steps,
                values,
                color=ORANGE if evaluated else BLUE,
                marker="o" if evaluated else None,
            )
            axes.set_ylabel(name)
        panels[-1].set_xlabel("minibatch")


class LiveChart(Callback):
    """In a notebook, a chart of the loss that grows while the run goes on.

    `every_s` is how often it is drawn again. Drawing takes this machine's time: raise the value where devices
    are emulated on a busy machine.
    """

    def __init__(self, every_s: float = 1.0) -> None:
        if not every_s > 0:
            raise InputError(f"every_s {every_s} of LiveChart is not allowed; give seconds above 0")
        try:
            from IPython.display import display
        except ImportError:
            raise InputError(
                "LiveChart needs a notebook: pip install 'weft[notebook]'; in a terminal use `weft top`"
            ) from None
        self.every_s = every_s
        self.curves: dict[str, list[tuple[int, float]]] = {"loss": []}
        self._display: Any = display
        self._handle: Any = None
        self._drawn = -math.inf

    def on_step(self, done: StepDone) -> None:
        self.curves["loss"].append((done.step, done.loss))
        if time.monotonic() >= self._drawn + self.every_s:
            self._draw()

    def on_evaluation(self, evaluation: Evaluation) -> None:
        for name, value in evaluation.values.items():
            self.curves.setdefault(f"test/{name}", []).append((evaluation.step, value))

    def recall(self, evaluation: Evaluation) -> None:
        self.on_evaluation(evaluation)

    def close(self) -> None:
        if self.curves["loss"]:
            self._draw()

    def _draw(self) -> None:
        from weft.report.html import picture

        chart = Chart(picture(lambda path: draw_curves(self.curves, path), "the loss"))
        if self._handle is None:
            self._handle = self._display(chart, display_id=True)
        if self._handle is not None:  # outside of a notebook there is none
            self._handle.update(chart)
        self._drawn = time.monotonic()


class Chart:
    """A picture as a notebook shows it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _repr_html_(self) -> str:
        return self.text
