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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from weft.errors import InputError, LostDevice
from weft.fleet.faults import Faults
from weft.fleet.trace import Trace
from weft.plans.plan import Plan
from weft.program.copies import copies_of
from weft.runtime.run.advice import Adviser, Nobody
from weft.runtime.run.injector import Injector
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import open_crew
from weft.runtime.run.make_ready import make_ready
from weft.runtime.run.measured import total_counts
from weft.runtime.run.outcome import Outcome, Settling
from weft.runtime.run.records.copies import Copy
from weft.runtime.run.records.in_need import saved_in_need
from weft.runtime.run.records.keeper import Keeper, Weights
from weft.runtime.run.records.live import Live
from weft.runtime.run.records.orphans import fleet_of, newest_for
from weft.runtime.run.records.plan_changes import PlanRecord, Replayed
from weft.runtime.run.records.record import Folder
from weft.runtime.run.records.saves import RunFile, Saved, check_like
from weft.runtime.run.recovery.stop import Stop
from weft.runtime.run.results import Step, TrainResult
from weft.runtime.run.run import Run
from weft.runtime.run.survivors import Survivors
from weft.runtime.run.watch.callbacks import StepDone, looked_at
from weft.runtime.run.watch.evaluation import Evaluation
from weft.runtime.run.watch.watcher import UNWATCHED, Watching, watcher_of
from weft.runtime.run.workload.asked import Asked
from weft.runtime.run.workload.find import AnyWorkload, recovery_of
from weft.runtime.run.workload.protocol import Trained
from weft.runtime.wire import messages as msg
from weft.runtime.wire.seal import digest_of

OnLoss = Literal["recover", "stop"]
AdviserFor = Callable[[Plan], Adviser]


@dataclass(frozen=True)
class Options:
    """How a run is kept, watched and saved."""

    out: Path | None = None
    resume: bool = False
    save_every: int | None = None  # minibatches between saves to `out`
    trace: Trace | None = None  # emulated: how the fleet changes
    faults: Faults | None = None  # emulated: what goes wrong
    on_loss: OnLoss = "recover"
    keep_every: int | None = None  # minibatches between copies to go back to; None: what costs 2%
    adviser_for: AdviserFor | None = None  # who may change a healthy run's plan
    watching: Watching = UNWATCHED  # evaluations, callbacks and what they are for
    replay: PlanRecord | None = None  # the plans of an earlier run, to be repeated


def start(asked: Asked, options: Options, work: AnyWorkload) -> TrainResult:
    """The whole way. `work` is what `asked` was made into."""
    return _Training(asked, options, work).go()


class _Training:
    _asked_for_copies: frozenset[str] = frozenset()  # devices of the run that is resumed

    def __init__(self, asked: Asked, options: Options, work: AnyWorkload) -> None:
        self.asked, self.options, self.work = asked, options, work
        self.folder = Folder(options.out) if options.out is not None else None
        self.live = Live(self.folder)
        self.recovery = Stop() if options.on_loss == "stop" else recovery_of(work.plan)
        self.adviser = self._adviser()
        self.plan = self.adviser.first(work.plan)
        self.keeper = (
            Keeper(self.folder, self.plan, asked.steps, self._rate) if self.folder else None
        )
        self.first = 0
        self.end = asked.steps  # a run that is stopped ends earlier
        self.watcher = watcher_of(options.watching, asked, work)
        self.training_s = 0.0
        self.losses: dict[int, float] = {}
        self.settling = Settling()
        # Of the run, and what only a run that resumes it knows. A resumed run keeps both.
        self._id, self._secret = secrets.token_hex(4), secrets.token_hex(16)
        self._passed_over = ""  # why the newest save was not taken

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
            memory = self._take_up(run, memory)
            self._make_ready(run, memory)
            if work.measured:
                run.note(self.first, "measured", "; ".join(work.measured))
            if self._passed_over:
                run.note(self.first, "older_save_taken", self._passed_over)
            if settings.trace is not None:
                run.start_trace()
            self._watch(run)
            follows = self.live.follow(run, self.first, self.asked)
            with self._faults(settings) as injector, follows, self._in_need(run):
                if injector is not None:
                    injector.watch(run)
                trained = self._train(run)
            timeline, nodes = run.timeline()
        result = TrainResult(
            model=trained.model, plan=run.plan, steps=self.end, first=self.first,
            losses=[self.losses[s] for s in sorted(self.losses)],
            seconds=self.training_s, timeline=timeline, nodes=nodes, events=list(run.events),
            out=self.folder.path if self.folder else None, too_fast=work.too_fast,
            test_accuracy=trained.test_accuracy, network=trained.network,
            averaged=trained.averaged, evaluations=self.watcher.evaluations,
            best=self.watcher.best, best_state=self.watcher.best_state,
            learning_rates={s: self._rate(s) for s in sorted(self.losses)},
            stopped=self.watcher.stop.why if self.watcher.stop else "",
            radio=total_counts(nodes) if run.plan.swarm else Counter(),
            done=dict(run.outcome.done), faults=injector.injected if injector is not None else [],
        )  # fmt: skip
        if self.keeper:
            means = trained.averaged.state_dict() if trained.averaged is not None else None
            result.unsaved = self._save(
                run, self.end, Weights(trained.state, trained.memory, means, trained.parts)
            )
            self.keeper.close(run, timeline)
            result.events = list(run.events)  # with what could not be written
        return result

    def _make_ready(self, run: Run, memory: Mapping[str, Tensor]) -> None:
        planner = Survivors(self.plan.strategy, self.plan, self.asked.options, self.work.graph)
        make_ready(run, memory, self.first, planner, self.keeper)

    def _in_need(self, run: Run) -> AbstractContextManager[None]:
        return saved_in_need(run, self.keeper, self.first, self._save_copy)

    def _take_up(self, run: Run, memory: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """A resumed run goes on where its nodes are, if they still have a newer copy than the folder."""
        copy = None
        if self.options.resume and not self.asked.place.emulated:
            copies = msg.GetCopies(self._id, self._secret)
            copy = newest_for(run, copies, self._asked_for_copies)
        if copy is not None and self.first < copy.step < self.asked.steps:
            self.work.resume_with(copy.state)
            run.initial, run.own, memory = self.work.state, self.work.own, copy.memory
            why = f"the nodes have a copy of {copy.step} minibatches, the folder of {self.first}"
            run.note(copy.step, "taken_up", why)
            self.first = copy.step
        if self.keeper is not None and self.options.resume:
            self.keeper.first = self.first
            self.keeper.forget_from(run, self.first)
            self._recall(self.keeper.folder)
            if copy is not None and self.first == copy.step:
                self.keeper.add_missing(run, copy.losses)
        return memory

    def _faults(self, settings: Settings) -> AbstractContextManager[Injector | None]:
        if self.options.faults is None or settings.machines is None:
            return nullcontext()
        return Injector(self.options.faults, settings.machines, self.options.out)

    def _train(self, run: Run) -> Trained:
        """All minibatches, and the weights home. A device lost on the way home is recovered too."""
        first, begin = self.first, time.monotonic()
        last = self._next_look(first)
        while True:
            self.losses |= run.steps(first, last, self._progress(run, begin)).losses
            self._settle(run, min(run.outcome.done.values(), default=-1) + 1)
            self.training_s = time.monotonic() - begin
            try:
                if last < self.asked.steps and not self.watcher.poll():
                    self._look_at(run, last)
                    first, last = last, self._next_look(last)
                    continue
                return self._end(run)
            except LostDevice as lost:
                first, run.fault = last, lost

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
        if self.keeper:
            self.keeper.last = self.end
            self.keeper.forget_from(run, self.end)
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
        if self.options.replay is not None:
            return Replayed(self.options.replay, plan, self.asked.options, self.work.graph)
        if not self.recovery.goes_back:
            return Nobody()
        return Survivors(plan.strategy, plan, self.asked.options, self.work.graph)

    def _watch(self, run: Run) -> None:
        """Copies of the weights are saved and evaluated as they come; a callback may end the run."""
        if self.keeper:
            run.on_plan = self.keeper.changed
        if (self.keeper and self.options.save_every) or self.watcher.takes_copies:
            run.on_copy = lambda copy: self._take_copy(run, copy)
        run.enough = self.watcher.poll
        self.watcher.on_evaluation = lambda evaluation: self._evaluated(run, evaluation)
        if (keeper := self.keeper) and self.options.watching.keep_best:
            self.watcher.on_best = lambda evaluation, state: keeper.best(run, evaluation, state)

    def _take_copy(self, run: Run, copy: Copy) -> None:
        whole = Copy(copy.step, self.work.complete(copy.state), copy.memory)
        if self.keeper and self.options.save_every and copy.step % self.options.save_every == 0:
            self._save_copy(run, copy)
        self.watcher.take(whole)

    def _save_copy(self, run: Run, copy: Copy) -> str:
        state, parts = self.work.complete(copy.state), self.work.parts(copy.state)
        return self._save(run, copy.step, Weights(state, copy.memory, parts=parts))

    def _evaluated(self, run: Run, evaluation: Evaluation) -> None:
        """An evaluation is in the folder, and the schedule knows it, before anything depends on it."""
        timetable = self.asked.timetable
        if timetable is not None and timetable.looks:
            timetable.metric(evaluation.step, looked_at(timetable, evaluation))
        if self.keeper:
            self.keeper.evaluated(run, evaluation)

    def _rate(self, step: int) -> float:
        """The learning rate of a minibatch."""
        timetable = self.asked.timetable
        return timetable.lr(step) if timetable is not None else self.asked.rule.lr

    def _settings(self) -> Settings:
        keep: set[int] = set()
        back = 0
        if self.recovery.goes_back and len(self.plan.devices) > 1:
            back = self.options.keep_every or copies_of(self.plan).every
        if self.folder and self.options.save_every:
            keep.add(self.options.save_every)
        if self.options.watching.evaluate_every:
            keep.add(self.options.watching.evaluate_every)
        if self.watcher.takes_copies and not keep:
            keep.add(copies_of(self.plan).every)
        return dataclasses.replace(
            self.work.settings(),
            trace=self.options.trace,
            keep_every=tuple(sorted(keep)),
            go_back_every=back,
            lineage=self._id,
            heir=digest_of(self._secret) if self.folder else "",
        )

    def _progress(self, run: Run, begin: float) -> Callable[[Outcome], None]:
        def progress(outcome: Outcome) -> None:
            end = min(outcome.done.values(), default=-1) + 1  # all devices have done what is before
            self._settle(run, end)
            tell = self.asked.on_progress
            if tell is None or not outcome.losses:
                return
            predicted = run.plan.predicted.step_s if run.plan.predicted else None
            tell(Step(self._done(outcome), self.asked.steps, outcome.losses[outcome.newest],
                      time.monotonic() - begin, predicted, run.plan.batch, self.first,
                      evaluation=next(reversed(self.watcher.evaluations), None)))  # fmt: skip

        return progress

    def _settle(self, run: Run, end: int) -> None:
        """Minibatches before `end` are done: their losses go to the folder and to the callbacks."""
        losses = self.settling.take(run.outcome, end)
        if self.keeper:
            self.keeper.grow(run, losses, end)
        for step, loss in losses.items() if self.options.watching.callbacks else ():
            self.watcher.step_done(StepDone(step, loss, self._rate(step)))

    def _done(self, outcome: Outcome) -> int:
        """Minibatches done: of all together or, where each device has its own, of the median one."""
        if self.work.losses == "sum":
            return outcome.newest + 1
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
            if saved is None and self.keeper is not None:
                self.folder.forget_metrics()
                self.folder.forget_best()
                self.keeper.begin()
            self.folder.save_plan(self.plan)
        except OSError as error:
            raise InputError(f"cannot write to --out {self.folder.path}: {error}") from None
        return saved.optimizer if saved is not None else {}

    def _recall(self, folder: Folder) -> None:
        """A resumed run knows the evaluations of the run before it, and so do its callbacks and schedule."""
        evaluations = folder.evaluations()
        self.watcher.recall(evaluations, folder.best())
        timetable = self.asked.timetable
        for evaluation in evaluations if timetable is not None and timetable.looks else ():
            assert timetable is not None
            timetable.metric(evaluation.step, looked_at(timetable, evaluation))

    def _save(self, run: Run, steps: int, weights: Weights) -> str:
        """A whole save, and the losses until then. Returns why it was not written, or nothing."""
        assert self.keeper is not None
        unsaved = self.keeper.save(run, self._record(steps), weights)
        self._settle(run, steps)
        return unsaved

    def _record(self, steps: int) -> RunFile:
        """What a resumed run must agree with. The plan is the first one: a lost device changes it."""
        plan = self.work.plan
        return RunFile(plan.model, plan.strategy, steps, plan.batch, self.asked.seed,
                       self.asked.rule.name, self.asked.precision, self._id, secret=self._secret,
                       options={k: str(v) for k, v in self.asked.options.items()})  # fmt: skip

    def _resume(self, folder: Folder) -> Saved:
        """The save to go on with, if it is of a run like the one that was asked for."""
        saved = folder.load()
        if saved.run.steps >= self.asked.steps:
            raise InputError(
                f"the run in {folder.path} has done {saved.run.steps} steps; "
                f"--steps {self.asked.steps} leaves nothing to do"
            )
        self.work.resume_with(saved.parts or saved.weights)
        check_like(folder.path, saved.run, self._record(saved.run.steps))
        self.first, self._id = saved.run.steps, saved.run.id
        self._secret = saved.run.secret or self._secret
        self._asked_for_copies = fleet_of(folder.path)
        if self.keeper is not None:
            self.keeper.recall_plans()
        if saved.passed_over:
            self._passed_over = (
                f"goes on after minibatch {saved.run.steps} of an older save: {saved.passed_over}"
            )
        return saved
