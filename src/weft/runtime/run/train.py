"""Trains a network on a fleet: from what the user asked for to a trained network and a closed folder.

    result = start(Asked(...), Options(out=Path("runs/first")))

`weft.train` is the front of it. The same way serves every strategy: its workload says what is trained,
its recovery what happens when a device is lost, its adviser who may change the plan meanwhile.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from weft.errors import InputError, LostDevice
from weft.fleet.trace import Trace
from weft.plans.plan import Plan
from weft.program.timeline import Timeline
from weft.runtime.run.advice import Adviser, Nobody
from weft.runtime.run.copies import Copy, interval
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import open_crew
from weft.runtime.run.live import Live
from weft.runtime.run.measured import total_counts
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.record import Folder
from weft.runtime.run.recovery.stop import Stop
from weft.runtime.run.results import Step, TrainResult
from weft.runtime.run.run import Run
from weft.runtime.run.saves import RunFile, Saved, check_like
from weft.runtime.run.survivors import Survivors
from weft.runtime.run.watch.callbacks import Better, StepDone
from weft.runtime.run.watch.evaluation import ACCURACY, LOSS, Evaluation, Evaluator, test_pairs
from weft.runtime.run.watch.watcher import UNWATCHED, Watcher, Watching
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
    watching: Watching = UNWATCHED  # evaluations, callbacks and what they are for


def start(asked: Asked, options: Options, work: AnyWorkload) -> TrainResult:
    """The whole way. `work` is what `asked` was made into."""
    return _Training(asked, options, work).go()


class _Training:
    def __init__(self, asked: Asked, options: Options, work: AnyWorkload) -> None:
        self.asked, self.options, self.work = asked, options, work
        self.folder = Folder(options.out) if options.out is not None else None
        self.live = Live(self.folder)
        self.recovery = Stop() if options.on_loss == "stop" else recovery_of(work.plan)
        self.adviser = self._adviser()
        self.plan = self.adviser.first(work.plan)
        self.first = 0
        self.end = asked.steps  # a run that is stopped ends earlier
        self.watcher = self._watcher()
        self.training_s = 0.0
        self.losses: dict[int, float] = {}
        self._saved: set[int] = set()  # minibatches whose losses are in the folder
        self._id = secrets.token_hex(4)  # of the run; a resumed run keeps it
        self._passed_over = ""  # why the newest save was not taken
        self._failing: set[str] = set()  # what the folder did not take when it was last tried

    def go(self) -> TrainResult:
        try:
            with self.live:
                return self._go()
        finally:
            self.watcher.close()

    def _go(self) -> TrainResult:
        memory = self._open_folder()
        also = self.adviser.also(self.plan)
        work = self.work
        with (
            open_crew(self.plan, self.asked.place, self._settings(), also) as (crew, settings),
            Run(crew, self.plan, work.graph, work.state, settings, work.feed, workload=work,
                recovery=self.recovery, adviser=self.adviser) as run,
        ):  # fmt: skip
            run.prepare(memory)
            if self._passed_over:
                run.note(self.first, "older_save_taken", self._passed_over)
            if settings.trace is not None:
                run.start_trace()
            self._watch(run)
            with self.live.follow(run, self.first, self.asked):
                trained = self._train(run)
            timeline, nodes = run.timeline()
        result = TrainResult(
            model=trained.model, plan=run.plan, steps=self.end, first=self.first,
            losses=[self.losses[s] for s in sorted(self.losses)],
            seconds=self.training_s, timeline=timeline, nodes=nodes, events=run.events,
            out=self.folder.path if self.folder else None, too_fast=work.too_fast,
            test_accuracy=trained.test_accuracy, network=trained.network,
            averaged=trained.averaged, evaluations=self.watcher.evaluations,
            best=self.watcher.best, best_state=self.watcher.best_state,
            learning_rates={s: self._rate(s) for s in sorted(self.losses)},
            stopped=self.watcher.stop.why if self.watcher.stop else "",
            radio=total_counts(nodes) if run.plan.swarm else Counter(),
        )  # fmt: skip
        if self.folder:
            result.unsaved = self._close_folder(self.folder, run, trained, timeline)
        return result

    def _train(self, run: Run) -> Trained:
        """All minibatches, and the weights home. A device lost on the way home is recovered too."""
        first, begin = self.first, time.monotonic()
        while True:
            last = self._next_look(first)
            self.losses |= run.steps(first, last, self._progress(run, begin)).losses
            self.training_s = time.monotonic() - begin
            try:
                if last < self.asked.steps and not self.watcher.poll():
                    self._look_at(run, last)
                    first = last
                    continue
                return self._end(run)
            except LostDevice as fault:
                begins = run.recovery.recover(run, fault, last)
                first = min(begins.values(), default=last)

    def _end(self, run: Run) -> Trained:
        """The weights home: those of the last minibatch, or of the copy at which the run was stopped."""
        stop = self.watcher.finish()
        if stop is None:
            trained = self.work.result(run)
            if self.options.watching.evaluate_every:
                self.watcher.begin(Copy(self.end, trained.state, trained.memory))
                self.watcher.finish()
            return trained
        if stop.copy is None:
            self.end = min(run.outcome.done.values(), default=-1) + 1
            trained = self.work.result(run)
        else:
            self.end = stop.copy.step
            trained = self.work.result(run, (dict(stop.copy.state), dict(stop.copy.memory)))
        run.note(self.end, "stopped", stop.why)
        self.losses = {step: loss for step, loss in self.losses.items() if step < self.end}
        if self.folder:
            self.folder.forget_metrics(self.end)
        return trained

    def _next_look(self, first: int) -> int:
        """Where the next series of minibatches ends: at the next evaluation if the learning rate depends on
        it, else at the end of the run."""
        every, timetable = self.options.watching.evaluate_every, self.asked.timetable
        if timetable is None or not timetable.looks or not every:
            return self.asked.steps
        return min((first // every + 1) * every, self.asked.steps)

    def _look_at(self, run: Run, step: int) -> None:
        """All devices have stopped at `step`: the schedule is told how good the network is."""
        weights, memory = run.collect()
        self.watcher.begin(Copy(step, self.work.complete(weights), memory))
        self.watcher.finish()

    # --- what goes with a run -------------------------------------------------------------------

    def _adviser(self) -> Adviser:
        plan = self.work.plan
        if self.options.adviser_for is not None:
            return self.options.adviser_for(plan)
        if not self.recovery.goes_back:
            return Nobody()
        return Survivors(plan.strategy, plan, self.asked.options, self.work.graph)

    def _watcher(self) -> Watcher:
        """Refuses what cannot be evaluated before anything starts."""
        watching, work = self.options.watching, self.work
        evaluator = None
        if watching.evaluate_every:
            if not work.has_copies:
                raise InputError(
                    "each device trains a network of its own, so there is no network to evaluate before the "
                    "end: leave evaluate_every out"
                )
            test = watching.test if watching.test is not None else work.test
            if test is None:
                raise InputError(
                    "evaluate_every needs test data: the data has none, so give `test`"
                )
            evaluator = Evaluator(
                self.asked.model, self.asked.loss, test_pairs(test), watching.metrics
            )
        return Watcher(watching, evaluator, copies=work.has_copies)

    def _watch(self, run: Run) -> None:
        """Copies of the weights are saved and evaluated as they come; a callback may end the run."""
        if (self.folder and self.options.save_every) or self.watcher.takes_copies:
            run.on_copy = lambda copy: self._take_copy(run, copy)
        run.enough = self.watcher.poll
        self.watcher.on_evaluation = lambda evaluation: self._evaluated(run, evaluation)
        if self.folder and self.options.watching.keep_best:
            folder = self.folder
            self.watcher.on_best = lambda evaluation, state: self._note_unwritten(
                run, evaluation.step, "best", lambda: folder.save_best(state)
            )

    def _take_copy(self, run: Run, copy: Copy) -> None:
        whole = Copy(copy.step, self.work.complete(copy.state), copy.memory)
        if self.folder and self.options.save_every and copy.step % self.options.save_every == 0:
            self._save(run, copy.step, whole.state, whole.memory)
        self.watcher.take(whole)

    def _evaluated(self, run: Run, evaluation: Evaluation) -> None:
        """An evaluation is in the folder, and the schedule knows it, before anything depends on it."""
        timetable = self.asked.timetable
        if timetable is not None and timetable.looks:
            timetable.metric(evaluation.step, self._looked_at(evaluation))
        if self.folder:
            folder = self.folder
            row = {"step": evaluation.step - 1, "evaluated": dict(evaluation.values)}
            self._note_unwritten(
                run, evaluation.step, "evaluation", lambda: folder.add_metrics([row])
            )

    def _looked_at(self, evaluation: Evaluation) -> float:
        """What a schedule looks at: the loss, or the accuracy if it wants a large value."""
        assert self.asked.timetable is not None
        metric = LOSS if self.asked.timetable.wants_smaller else ACCURACY
        return Better(metric).value(evaluation)

    def _rate(self, step: int) -> float:
        """The learning rate of a minibatch."""
        timetable = self.asked.timetable
        return timetable.lr(step) if timetable is not None else self.asked.rule.lr

    def _settings(self) -> Settings:
        keep: set[int] = set()
        if self.recovery.goes_back and len(self.plan.devices) > 1:
            keep.add(self.options.keep_every or interval(self.plan))
        if self.folder and self.options.save_every:
            keep.add(self.options.save_every)
        if self.options.watching.evaluate_every:
            keep.add(self.options.watching.evaluate_every)
        if self.watcher.takes_copies and not keep:
            keep.add(interval(self.plan))
        return dataclasses.replace(
            self.work.settings(), trace=self.options.trace, keep_every=tuple(sorted(keep))
        )

    def _progress(self, run: Run, begin: float) -> Callable[[Outcome], None]:
        def progress(outcome: Outcome) -> None:
            if self.folder:
                self._grow(run, outcome)
            for step in sorted(outcome.losses) if self.options.watching.callbacks else ():
                if step <= min(outcome.done.values(), default=-1):
                    self.watcher.step_done(StepDone(step, outcome.losses[step], self._rate(step)))
            tell = self.asked.on_progress
            if tell is None or not outcome.losses:
                return
            newest = max(outcome.losses)
            predicted = run.plan.predicted.step_s if run.plan.predicted else None
            tell(Step(self._done(outcome), self.asked.steps, outcome.losses[newest],
                      time.monotonic() - begin, predicted, run.plan.batch, self.first,
                      evaluation=next(reversed(self.watcher.evaluations), None)))  # fmt: skip

        return progress

    def _done(self, outcome: Outcome) -> int:
        """Minibatches done: of all together or, where each device has its own, of the median one."""
        if self.work.losses == "sum":
            return max(outcome.losses) + 1
        done = sorted(outcome.done.values())
        return done[len(done) // 2] + 1

    # --- the folder -----------------------------------------------------------------------------

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
            if saved is None:
                self.folder.forget_best()
        except OSError as error:
            raise InputError(f"cannot write to --out {self.folder.path}: {error}") from None
        if saved is not None:
            self._recall(self.folder)
        return saved.optimizer if saved is not None else {}

    def _recall(self, folder: Folder) -> None:
        """A resumed run knows the evaluations of the run before it, and so do its callbacks and schedule."""
        evaluations = folder.evaluations()
        self.watcher.recall(evaluations, folder.best())
        timetable = self.asked.timetable
        for evaluation in evaluations if timetable is not None and timetable.looks else ():
            assert timetable is not None
            timetable.metric(evaluation.step, self._looked_at(evaluation))

    def _close_folder(self, folder: Folder, run: Run, trained: Trained, timeline: Timeline) -> str:
        """The last save and what goes with it. Returns why the weights are not saved, or nothing."""
        steps, means = self.end, trained.averaged
        averaged = means.state_dict() if means is not None else None
        unsaved = self._save(run, steps, trained.state, trained.memory, averaged)
        self._note_unwritten(run, steps, "plan", lambda: folder.save_plan(run.plan))
        self._note_unwritten(run, steps, "timeline", lambda: folder.save_timeline(timeline))
        return unsaved

    def _note_unwritten(self, run: Run, step: int, what: str, write: Callable[[], None]) -> str:
        """Writes to the folder. If the disk is full or the folder cannot be written, the run goes on.
        Returns why it was not written, or nothing."""
        assert self.folder is not None
        try:
            write()
        except OSError as error:
            why = f"{what} of minibatch {step} not written to {self.folder.path}: {error}"
            if what not in self._failing or step == self.end:
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
        unsaved = self._note_unwritten(
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
        self._add_metrics(run, outcome.losses, min(outcome.done.values(), default=-1) + 1)

    def _add_metrics(self, run: Run, losses: Mapping[int, float], end: int) -> None:
        due = [s for s in sorted(losses) if s < end and s not in self._saved]
        if due:
            self._note_unwritten(run, end, "losses", lambda: self._write_metrics(losses, due))

    def _write_metrics(self, losses: Mapping[int, float], due: list[int]) -> None:
        assert self.folder is not None
        self.folder.add_metrics([{"step": s, "loss": losses[s], "lr": self._rate(s)} for s in due])
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
        if saved.passed_over:
            self._passed_over = (
                f"goes on after minibatch {saved.run.steps} of an older save: {saved.passed_over}"
            )
        return saved
