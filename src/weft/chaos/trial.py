"""One training run with a script of faults, as data: what to run, and what came of it.

ran = try_it(Trial(model="lenet5", data="mnist5k", fleet=text, strategy="chain", steps=300))
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from torch import nn

from weft.adapt.train import train
from weft.api import load_model
from weft.data.user_data import class_count, named_data, sample_shape
from weft.errors import WeftError
from weft.fleet.faults import Faults, Kind
from weft.fleet.parse import parse_fleet
from weft.plans import registry
from weft.plans.protocols import GO_BACK
from weft.runtime.run.injector import Injected
from weft.runtime.run.results import TrainResult
from weft.zoo.loading import short_name

TAIL = 10  # losses at the end whose mean is compared


class Trial(Struct, frozen=True, omit_defaults=True):
    """What to run."""

    model: str
    data: str
    fleet: str  # the text of a fleet file
    strategy: str
    steps: int
    out: str
    batch: int | None = None
    optimizer: str = "sgd"
    lr: float | None = None
    options: dict[str, str] = {}
    seed: int = 0
    save_every: int | None = None
    resume: bool = False
    patience: float = 1.0
    deadline: float = 30.0
    look_every: int | None = None
    faults: Faults = Faults()


class Ran(Struct, frozen=True, omit_defaults=True):
    """What came of it. With an `error` nothing else is known."""

    seconds: float = 0.0
    done: int = 0  # minibatches, of the device that has done most
    losses: int = 0  # minibatches whose loss is known
    first: int = 0  # where a resumed run went on
    final_loss: float | None = None  # the mean of the last few
    repeated: int = 0
    exact: bool = False  # whether the weights must be those of an undisturbed run
    faults: tuple[Injected, ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    error: str = ""


def try_it(trial: Trial) -> Ran:
    """The run; the weights are in the trial's folder. An error of the run is an outcome as well."""
    torch.manual_seed(trial.seed)
    samples = named_data(trial.data, trial.seed)
    count = None if ":" in trial.model else class_count(samples)
    module, _ = load_model(trial.model, sample_shape(samples), count)
    online = registry.get(trial.strategy).online is not None
    try:
        result = train(
            module, samples, nn.CrossEntropyLoss(), fleet=parse_fleet(trial.fleet),
            strategy=trial.strategy, steps=trial.steps, batch=trial.batch,
            optimizer=trial.optimizer, lr=trial.lr, options=trial.options, seed=trial.seed,
            out=Path(trial.out), resume=trial.resume, save_every=trial.save_every,
            patience=trial.patience, deadline=trial.deadline, local=True,
            name=short_name(trial.model), faults=trial.faults if trial.faults.fault else None,
            look_every=trial.look_every if online else None,
        )  # fmt: skip
    except WeftError as error:
        traceback.print_exc()  # to stderr: each failure is a defect, and somebody will look for its cause
        return Ran(error=f"{type(error).__name__}: {error}")
    return _ran(result)


def _ran(result: TrainResult) -> Ran:
    record, plan, tail = registry.get(result.plan.strategy), result.plan, result.losses[-TAIL:]
    plain = {plan.codec, plan.gradient_codec} == {"none"} and not plan.stale
    return Ran(
        seconds=round(result.seconds, 3), done=max(result.done.values(), default=-1) + 1,
        losses=len(result.losses), first=result.first,
        final_loss=sum(tail) / len(tail) if tail else None,
        repeated=sum(event.get("repeated", 0) for event in result.events),
        exact=record.exact and record.recovery == GO_BACK and plain,
        faults=tuple(result.faults), events=tuple(result.events),
        error=result.unsaved,
    )  # fmt: skip


def kills(faults: tuple[Injected, ...]) -> int:
    """How many processes were killed."""
    return sum(fault.kind == Kind.kill for fault in faults)
