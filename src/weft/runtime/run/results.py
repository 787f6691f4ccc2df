"""What a training run tells: on its way, and at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from weft.plans.plan import Plan
from weft.program.timeline import Timeline
from weft.runtime.run.injector import Injected
from weft.runtime.run.watch.evaluation import Evaluation
from weft.runtime.wire.messages import Spans
from weft.showing import Shown


@dataclass(frozen=True)
class Step:
    """Where a run stands, for progress bars."""

    done: int
    steps: int
    loss: float | None
    seconds: float
    predicted_step_s: float | None
    batch: int
    first: int = 0  # where this run began, when it goes on with another
    what: str = "training"
    evaluation: Evaluation | None = None  # the newest one


@dataclass
class TrainResult(Shown):
    """What `weft.train` returns."""

    model: nn.Module
    plan: Plan
    losses: list[float]
    steps: int
    seconds: float  # of training alone, without starting and collecting
    timeline: Timeline
    nodes: dict[str, Spans]
    first: int = 0  # the minibatch that this run began with
    too_fast: tuple[str, ...] = ()  # devices of the fleet that this machine cannot emulate
    test_accuracy: float | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)  # the newest minibatch of each device
    faults: list[Injected] = field(default_factory=list)  # of a script, that came
    radio: Counter[str] = field(default_factory=Counter)  # a swarm's messages, packets and losses
    out: Path | None = None
    unsaved: str = ""  # why the trained weights are not in `out`, where they are not
    network: str = ""  # what `model` is, where it is not the user's own network
    averaged: nn.Module | None = (
        None  # a copy of `model` with the running means of its weights (ema)
    )
    evaluations: list[Evaluation] = field(default_factory=list)
    best: Evaluation | None = None  # by the metric of keep_best
    best_state: Mapping[str, Tensor] | None = None  # the weights of the best evaluation
    learning_rates: dict[int, float] = field(default_factory=dict)  # by minibatch
    stopped: str = ""  # why the run ended before all of its minibatches

    @property
    def history(self) -> dict[str, list[tuple[int, float]]]:
        """All curves of the run, as pairs of a minibatch and a value: `loss`, `lr`, and `test/NAME` for each
        metric."""
        rates = self.learning_rates
        curves = {"loss": list(zip(rates, self.losses, strict=False)), "lr": list(rates.items())}
        for evaluation in self.evaluations:
            for name, value in evaluation.values.items():
                curves.setdefault(f"test/{name}", []).append((evaluation.step, value))
        return curves

    @property
    def step_s(self) -> float:
        """Measured seconds per minibatch in the steady state."""
        return self.timeline.step_s

    @property
    def predicted_step_s(self) -> float:
        assert self.plan.predicted is not None
        return self.plan.predicted.seconds
