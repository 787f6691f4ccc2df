"""Keeps a run's folder while the run goes on: saves, losses, evaluations, and at the end plan and timeline.

    keeper.grow(run, losses, end)            # new losses, of minibatches that all devices have done
    keeper.save(run, record, tensors)        # a whole save
    keeper.close(run, trained, timeline)     # the end

A disk that is full does not end a run: what was not written becomes an event, and earlier saves stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from torch import Tensor

from weft.errors import InputError
from weft.fleet.faults import During
from weft.plans.plan import Plan
from weft.program.timeline import Timeline
from weft.runtime.run.records.plan_changes import CHANGES, PlanChange, PlanRecord
from weft.runtime.run.records.record import Folder
from weft.runtime.run.records.saves import RunFile
from weft.runtime.run.run import Run
from weft.runtime.run.watch.evaluation import Evaluation

Tensors = Mapping[str, Tensor]


class Weights(NamedTuple):
    """What a save holds."""

    state: Tensors
    memory: Tensors  # the optimizer's
    averaged: Tensors | None = None
    parts: Tensors | None = None  # the weights of devices with networks of their own


class Keeper:
    """Writes to the folder of one run. `last` is the minibatch with which the run ends, `rate` gives the
    learning rate of a minibatch."""

    def __init__(self, folder: Folder, plan: Plan, last: int, rate: Callable[[int], float]) -> None:
        self.folder, self.plan, self.last, self._rate = folder, plan, last, rate
        self.first = 0  # the minibatch that the run began with
        self.saved = 0  # minibatches that the newest save has
        self._changes: list[PlanChange] = []  # of the first plan
        self._recorded = 0  # changes that are in the folder
        self._before: PlanRecord | None = None  # of the run that is resumed
        self._unwritten: dict[int, float] = {}  # losses that the folder does not have yet
        self._failing: set[str] = set()  # what the folder did not take when it was last tried

    def written(self, run: Run, step: int, what: str, write: Callable[[], None]) -> str:
        """Writes to the folder. If the disk is full or the folder cannot be written, the run goes on.
        Returns why it was not written, or nothing."""
        try:
            write()
        except OSError as error:
            why = f"{what} of minibatch {step} not written to {self.folder.path}: {error}"
            if what not in self._failing or step == self.last:
                run.note(step, "not_saved", f"{why}. Earlier saves are kept", what=what)
            self._failing.add(what)
            return why
        self._failing.discard(what)
        return ""

    def save(self, run: Run, record: RunFile, weights: Weights) -> str:
        """A whole save. Returns why it was not written, or nothing."""
        with run.in_phase(During.save):
            why = self.written(
                run, record.steps, "weights", lambda: self.folder.save_state(record, *weights)
            )
        self.saved = self.saved if why else record.steps
        return why

    def grow(self, run: Run, losses: Mapping[int, float], end: int) -> None:
        """The folder's list of losses grows while the run goes on. `losses` are new ones; those that the disk
        did not take before are tried again."""
        if len(self._changes) != self._recorded:
            self.written(run, end, "changes of plan", self._save_changes)
        self._unwritten |= losses
        if not self._unwritten:
            return

        def write() -> None:
            rows = sorted(self._unwritten.items())
            self.folder.add_metrics(
                [{"step": step, "loss": loss, "lr": self._rate(step)} for step, loss in rows]
            )
            self._unwritten = {}

        self.written(run, end, "losses", write)

    def begin(self) -> None:
        """The first plan is in the folder from the beginning: `plan.json` is written again with each change,
        and a run of peers can be resumed only with the plan that cut its networks."""
        self._save_changes()

    def changed(self, step: int, plan: Plan, why: str) -> None:
        """Another plan runs from minibatch `step` on."""
        self._changes.append(PlanChange(step, plan, why))

    def evaluated(self, run: Run, evaluation: Evaluation) -> None:
        """An evaluation joins the list of losses, after its minibatch."""
        row = {"step": evaluation.step - 1, "evaluated": dict(evaluation.values)}
        self.written(run, evaluation.step, "evaluation", lambda: self.folder.add_metrics([row]))

    def best(self, run: Run, evaluation: Evaluation, state: Tensors) -> None:
        """The weights of the best evaluation so far."""
        self.written(run, evaluation.step, "best", lambda: self.folder.save_best(state))

    def forget_from(self, run: Run, step: int) -> None:
        """Losses and evaluations from minibatch `step` on do not count."""
        self._unwritten = {n: loss for n, loss in self._unwritten.items() if n < step}
        self.written(run, step, "losses", lambda: self.folder.forget_metrics(step))

    def add_missing(self, run: Run, losses: Mapping[int, float]) -> None:
        """Losses before the first minibatch that a coordinator which died had not written yet."""
        known = self.folder.steps_with_loss()
        self.grow(run, {n: loss for n, loss in losses.items() if n not in known}, self.first)

    def recall_plans(self) -> None:
        """The plans of the run that is resumed; without them only those of this part are kept."""
        with contextlib.suppress(InputError):
            self._before = PlanRecord.load(self.folder.path)

    def close(self, run: Run, timeline: Timeline) -> None:
        """The plan that ran last, and what happened when."""
        self.written(run, self.last, "plan", lambda: self.folder.save_plan(run.plan))
        self.written(run, self.last, "changes of plan", self._save_changes)
        self.written(run, self.last, "timeline", lambda: self.folder.save_timeline(timeline))

    def _save_changes(self) -> None:
        """Every change of plan, so that another run can repeat it."""
        record = PlanRecord(self.plan, tuple(self._changes))
        if self._before is not None:
            record = self._before.resumed(self.first, record)
        self.folder.write(CHANGES, msgspec.json.encode(record))
        self._recorded = len(self._changes)
