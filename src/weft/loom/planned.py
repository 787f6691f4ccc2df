"""A planned draw and its outcome: the records that checks read and write."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from weft.loom.draw import Draw
from weft.loom.networks import graph_of, graph_with_loss, profile_of
from weft.planning.task import make_task
from weft.plans.plan import Plan
from weft.plans.task import Task
from weft.program.program import Program
from weft.program.timeline import Timeline


class Violation(Struct, frozen=True):
    """A rule that must always hold and did not."""

    check: str
    says: str


class Outcome(Struct, frozen=True):
    """The outcome of a draw."""

    refused: str = ""  # why
    violations: tuple[Violation, ...] = ()
    plan: Plan | None = None
    ran: bool = False


class Planned(NamedTuple):
    """A planned draw: the input of the checks."""

    draw: Draw
    task: Task
    plan: Plan
    program: Program
    timeline: Timeline  # of one minibatch or answer

    @property
    def seconds(self) -> float:
        assert self.plan.predicted is not None
        return self.plan.predicted.seconds


def task_of(draw: Draw) -> Task:
    """The task that the strategy gets."""
    graph = None
    if draw.net.kind != "profile":
        training = draw.mode == "train"
        graph = graph_with_loss(draw.net, draw.loss) if training else graph_of(draw.net)
    return make_task(
        profile_of(draw.net, draw.fleet, graph),
        draw.fleet,
        batch=draw.batch,
        mode=draw.mode,
        options=draw.options,
        graph=graph,
        optimizer=draw.optimizer,
    )


def where(error: Exception) -> str:
    """The error and the last lines of Weft in its traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "weft" in f.filename]
    lines = [f"{Path(f.filename).name}:{f.lineno}" for f in frames[-3:]]
    return f"{type(error).__name__}: {error} ({' > '.join(lines)})"
