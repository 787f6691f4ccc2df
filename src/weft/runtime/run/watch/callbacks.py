"""Who is told of a run's minibatches and evaluations while it goes on, and may stop it.

class Print(weft.Callback):
    def on_evaluation(self, evaluation):
        print(evaluation.step, evaluation.values["loss"])

weft.train(..., evaluate_every=50, callbacks=[Print(), weft.EarlyStopping("accuracy", patience=3)])
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.errors import InputError
from weft.graph.optimizers.user_schedule import Timetable
from weft.runtime.run.watch.evaluation import ACCURACY, LOSS, Evaluation


@dataclass(frozen=True)
class StepDone:
    """A minibatch that all devices have done. `step` counts from 0."""

    step: int
    loss: float
    lr: float


class Callback:
    """Is told what happens, in the order of the minibatches. A method that returns True stops the run."""

    def on_step(self, done: StepDone) -> bool | None:
        """A minibatch is done. A run that is stopped here ends at its next copy of the weights."""

    def on_evaluation(self, evaluation: Evaluation) -> bool | None:
        """The network was evaluated. A run that is stopped here ends with the weights of this evaluation."""

    def recall(self, evaluation: Evaluation) -> None:
        """An evaluation of the run that is resumed, before the first minibatch."""

    def close(self) -> None:
        """The run has ended, whatever its end."""


class EarlyStopping(Callback):
    """Stops a run when `patience` evaluations in a row were not better than the best one.

    `least` is by how much an evaluation must be better to count. The loss is better where it is smaller, any
    other metric where it is larger; `smaller` says it otherwise.
    """

    def __init__(
        self, metric: str = LOSS, patience: int = 3, least: float = 0.0, smaller: bool | None = None
    ) -> None:
        if patience < 1:
            raise InputError(f"patience {patience} of EarlyStopping is not allowed; give 1 or more")
        self.metric, self.patience, self.least = metric, patience, least
        self._better = Better(metric, smaller)
        self._best = math.nan
        self._worse = 0  # evaluations in a row

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        value = self._better.value(evaluation)
        if math.isnan(self._best) or self._better.than(value, self._best, self.least):
            self._best, self._worse = value, 0
        else:
            self._worse += 1
        return self._worse >= self.patience

    def recall(self, evaluation: Evaluation) -> None:
        self.on_evaluation(evaluation)


class Better:
    """Which of two evaluations is the better one by a metric."""

    def __init__(self, metric: str, smaller: bool | None = None) -> None:
        self.metric = metric
        self.smaller = metric == LOSS if smaller is None else smaller

    def value(self, evaluation: Evaluation) -> float:
        """The metric's value. InputError if the evaluation has no such metric."""
        if self.metric not in evaluation.values:
            known = ", ".join(evaluation.values)
            hint = (
                "; targets that are no classes have no accuracy" if self.metric == ACCURACY else ""
            )
            raise InputError(f"no metric is called {self.metric}; there are {known}{hint}")
        return evaluation.values[self.metric]

    def than(self, value: float, other: float, least: float = 0.0) -> bool:
        """Whether `value` is better than `other`. What is no number is never better."""
        gain = other - value if self.smaller else value - other
        return gain > least


def looked_at(timetable: Timetable, evaluation: Evaluation) -> float:
    """What a schedule looks at: the loss, or the accuracy if it wants a large value."""
    return Better(LOSS if timetable.wants_smaller else ACCURACY).value(evaluation)
