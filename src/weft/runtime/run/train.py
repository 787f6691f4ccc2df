"""Trains a network on a fleet: from what the user asked for to a trained network and a closed folder.

    result = start(Asked(...), Options(out=Path("runs/first")))

`weft.train` is the front of it. The same way serves every strategy: its workload says what is trained,
its recovery what happens when a device is lost, its adviser who may change the plan meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from torch import Tensor

from weft.errors import InputError, LostDevice
from weft.fleet.trace import Trace
from weft.plans.plan import Plan
from weft.program.timeline import Timeline
from weft.runtime.run.advice import Adviser, Nobody
from weft.runtime.run.copies import Copy, interval
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import open_crew
from weft.runtime.run.measured import total_counts
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.plan_changes import CHANGES, PlanChange, PlanRecord, Replayed
from weft.runtime.run.record import Folder
from weft.runtime.run.recovery.stop import Stop
from weft.runtime.run.results import Step, TrainResult
from weft.runtime.run.run import Run
from weft.runtime.run.saves import RunFile, Saved, check_like
from weft.runtime.run.survivors import Survivors
from weft.runtime.run.workload.asked import Asked
from weft.runtime.run.workload.find import AnyWorkload, recovery_of
from weft.runtime.run.workload.protocol import Trained

OnLoss = Literal["recover", "stop"]
AdviserFor = Callable[[Plan], Adviser]


@dataclass(frozen=True)
class Options:
    """How a run is kept, watched and saved."""

    out: Path | None = None
    resume: bool = False
    save_every: int | None = None  # minibatches between saves to `out`
    trace: Trace | None = None  # emulated: how the fleet changes
    on_loss: OnLoss = "recover"
    keep_every: int | None = None  # minibatches between copies to go back to; None: what costs 2%
    adviser_for: AdviserFor | None = None  # who may change a healthy run's plan
    replay: PlanRecord | None = None  # the plans of an earlier run, to be repeated


def start(asked: Asked, options: Options, work: AnyWorkload) -> TrainResult:
    """The whole way. `work` is what `asked` was made into."""
    return _Training(asked, options, work).go()


class _Training:
    def __init__(self, asked: Asked, options: Options, work: AnyWorkload) -> None:
        self.asked, self.options, self.work = asked, options, work
        self.folder = Folder(options.out) if options.out is not None else None
        self.recovery = Stop() if options.on_loss == "stop" else recovery_of(work.plan)
        self.adviser = self._adviser()
        self.plan = self.adviser.first(work.plan)
        self.first = 0
        self.training_s = 0.0
        self.losses: dict[int, float] = {}
        self._saved: set[int] = set()  # minibatches whose losses are in the folder
        self._id = secrets.token_hex(4)  # of the run; a resumed run keeps it
        self._passed_over = ""  # why the newest save was not taken
        self._changes = 0  # of the plan that are in the folder
        self._record_before: PlanRecord | None = None  # of the run that is resumed
        self._failing: set[str] = set()  # what the folder did not take when it was last tried

    def go(self) -> TrainResult:
        memory = self._open_folder()
        also = self.adviser.also(self.plan)
        work = self.work
        with (
            open_crew(self.plan, self.asked.place, self._settings(), also) as (crew, settings),
            Run(crew, self.plan, work.graph, work.state, settings, work.feed, workload=work,
                recovery=self.recovery, adviser=self.adviser) as run,
        ):  # fmt: skip
            run.prepare(memory)
            if work.measured:
                run.note(self.first, "measured", "; ".join(work.measured))
            if self._passed_over:
                run.note(self.first, "older_save_taken", self._passed_over)
            if settings.trace is not None:
                run.start_trace()
            if self.folder and self.options.save_every:
                run.on_copy = lambda copy: self._save_copy(run, copy)
            trained = self._train(run)
            timeline, nodes = run.timeline()
        result = TrainResult(
            model=trained.model, plan=run.plan, steps=self.asked.steps, first=self.first,
            losses=[self.losses[s] for s in sorted(self.losses)],
            seconds=self.training_s, timeline=timeline, nodes=nodes, events=run.events,
            out=self.folder.path if self.folder else None, too_fast=work.too_fast,
            test_accuracy=trained.test_accuracy, network=trained.network,
            averaged=trained.averaged,
            radio=total_counts(nodes) if run.plan.swarm else Counter(),
        )  # fmt: skip
        if self.folder:
            result.unsaved = self._close_folder(self.folder, run, trained, timeline)
        return result

    def _train(self, run: Run) -> Trained:
        """All minibatches, and the weights home. A device lost on the way home is recovered too."""
        first, begin = self.first, time.monotonic()
        while True:
            self.losses |= run.steps(first, self.asked.steps, self._progress(run, begin)).losses
            self.training_s = time.monotonic() - begin
            try:
                return self.work.result(run)
            except LostDevice as fault:
                begins = run.recovery.recover(run, fault, self.asked.steps)
                first = min(begins.values(), default=self.asked.steps)

    # --- what goes with a run -------------------------------------------------------------------

    def _adviser(self) -> Adviser:
        plan = self.work.plan
        if self.options.adviser_for is not None:
            return self.options.adviser_for(plan)
        if self.options.replay is not None:
            return Replayed(self.options.replay, plan, self.asked.options, self.work.graph)
        if not self.recovery.goes_back:
            return Nobody()
        return Survivors(plan.strategy, plan, self.asked.options, self.work.graph)

    def _settings(self) -> Settings:
        keep: set[int] = set()
        if self.recovery.goes_back and len(self.plan.devices) > 1:
            keep.add(self.options.keep_every or interval(self.plan))
        if self.folder and self.options.save_every:
            keep.add(self.options.save_every)
        return dataclasses.replace(
            self.work.settings(), trace=self.options.trace, keep_every=tuple(sorted(keep))
        )

    def _progress(self, run: Run, begin: float) -> Callable[[Outcome], None]:
        def progress(outcome: Outcome) -> None:
            if self.folder:
                self._grow(run, outcome)
            tell = self.asked.on_progress
            if tell is None or not outcome.losses:
                return
            newest = max(outcome.losses)
            predicted = run.plan.predicted.step_s if run.plan.predicted else None
            tell(Step(self._done(outcome), self.asked.steps, outcome.losses[newest],
                      time.monotonic() - begin, predicted, run.plan.batch, self.first))  # fmt: skip

        return progress

    def _done(self, outcome: Outcome) -> int:
        """Minibatches done: of all together or, where each device has its own, of the median one."""
        if self.work.losses == "sum":
            return max(outcome.losses) + 1
        done = sorted(outcome.done.values())
        return done[len(done) // 2] + 1

    # --- the folder -----------------------------------------------------------------------------

    def _save_copy(self, run: Run, copy: Copy) -> None:
        """A copy of the run's weights becomes a save, where one is due."""
        assert self.options.save_every is not None
        if copy.step % self.options.save_every == 0:
            self._save(run, copy.step, self.work.complete(copy.state), copy.memory)

    def _open_folder(self) -> Mapping[str, Tensor]:
        """Before anything starts: the optimizer's memory, where the folder's run is resumed. A folder that
        cannot be written is refused."""
        if self.folder is None:
            if self.options.resume:
                raise InputError("--resume needs --out DIR, the folder of the run to go on with")
            return {}
        saved = self._resume(self.folder) if self.options.resume else None
        try:
            self.folder.forget_metrics(self.first)
            self.folder.save_plan(self.plan)
        except OSError as error:
            raise InputError(f"cannot write to --out {self.folder.path}: {error}") from None
        return saved.optimizer if saved is not None else {}

    def _save_changes(self, run: Run) -> None:
        """Every change of plan, so that another run can repeat it."""
        assert self.folder is not None
        changes = tuple(PlanChange(step, plan, why) for step, plan, why in run.plans)
        record = PlanRecord(self.plan, changes)
        if self._record_before is not None:
            record = self._record_before.resumed(self.first, record)
        self.folder.write(CHANGES, msgspec.json.encode(record))
        self._changes = len(run.plans)

    def _close_folder(self, folder: Folder, run: Run, trained: Trained, timeline: Timeline) -> str:
        """The last save and what goes with it. Returns why the weights are not saved, or nothing."""
        steps, means = self.asked.steps, trained.averaged
        averaged = means.state_dict() if means is not None else None
        unsaved = self._save(run, steps, trained.state, trained.memory, averaged)
        self._try(run, steps, "plan", lambda: folder.save_plan(run.plan))
        self._try(run, steps, "changes of plan", lambda: self._save_changes(run))
        self._try(run, steps, "timeline", lambda: folder.save_timeline(timeline))
        return unsaved

    def _try(self, run: Run, step: int, what: str, write: Callable[[], None]) -> str:
        """Writes to the folder. If the disk is full or the folder cannot be written, the run goes on.
        Returns why it was not written, or nothing."""
        assert self.folder is not None
        try:
            write()
        except OSError as error:
            why = f"{what} of minibatch {step} not written to {self.folder.path}: {error}"
            if what not in self._failing or step == self.asked.steps:
                run.note(step, "not_saved", f"{why}. Earlier saves are kept", what=what)
            self._failing.add(what)
            return why
        self._failing.discard(what)
        return ""

    def _save(
        self,
        run: Run,
        steps: int,
        state: Mapping[str, Tensor],
        memory: Mapping[str, Tensor],
        averaged: Mapping[str, Tensor] | None = None,
    ) -> str:
        assert self.folder is not None
        folder = self.folder
        record = self._record(steps)
        unsaved = self._try(
            run, steps, "weights", lambda: folder.save_state(record, state, memory, averaged)
        )
        self._add_metrics(run, {**self.losses, **run.outcome.losses}, steps)
        return unsaved

    def _record(self, steps: int) -> RunFile:
        """What a resumed run must agree with. The plan is the first one: a lost device changes it."""
        plan = self.work.plan
        return RunFile(plan.model, plan.strategy, steps, plan.batch, self.asked.seed,
                       self.asked.rule.name, self._id)  # fmt: skip

    def _grow(self, run: Run, outcome: Outcome) -> None:
        """The folder's list of losses grows while the run goes on: minibatches that every device has done."""
        done = min(outcome.done.values(), default=-1) + 1
        self._add_metrics(run, outcome.losses, done)
        if len(run.plans) != self._changes:
            self._try(run, done, "changes of plan", lambda: self._save_changes(run))

    def _add_metrics(self, run: Run, losses: Mapping[int, float], end: int) -> None:
        due = [s for s in sorted(losses) if s < end and s not in self._saved]
        if due:
            self._try(run, end, "losses", lambda: self._write_metrics(losses, due))

    def _write_metrics(self, losses: Mapping[int, float], due: list[int]) -> None:
        assert self.folder is not None
        self.folder.add_metrics([{"step": s, "loss": losses[s]} for s in due])
        self._saved.update(due)

    def _resume(self, folder: Folder) -> Saved:
        """The save to go on with, if it is of a run like the one that was asked for."""
        saved = folder.load()
        if saved.run.steps >= self.asked.steps:
            raise InputError(
                f"the run in {folder.path} has done {saved.run.steps} steps; "
                f"--steps {self.asked.steps} leaves nothing to do"
            )
        self.work.resume_with(saved.weights)
        check_like(folder.path, saved.run, self._record(saved.run.steps))
        self.first, self._id = saved.run.steps, saved.run.id
        with contextlib.suppress(InputError):  # without it only the record of this part is kept
            self._record_before = PlanRecord.load(folder.path)
        if saved.passed_over:
            self._passed_over = (
                f"goes on after minibatch {saved.run.steps} of an older save: {saved.passed_over}"
            )
        return saved
