"""Trains a network on a fleet: from what the user asked for to a trained network and a closed folder.

    result = start(Asked(...), Options(out=Path("runs/first")))

`weft.train` is the front of it. The same way serves every strategy: its workload says what is trained,
its recovery what happens when a device is lost, its adviser who may change the plan meanwhile.
"""

from __future__ import annotations

import dataclasses
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
from weft.runtime.run.advice import Adviser, Nobody
from weft.runtime.run.copies import Copy, interval
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import open_crew
from weft.runtime.run.measured import total_counts
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.record import Folder, RunFile
from weft.runtime.run.recovery.stop import Stop
from weft.runtime.run.results import Step, TrainResult
from weft.runtime.run.run import Run
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

    def go(self) -> TrainResult:
        memory = self._resume() if self.options.resume else {}
        if self.folder:
            self.folder.save_plan(self.plan)
            if not self.options.resume:
                self.folder.forget_metrics()
        also = self.adviser.also(self.plan)
        work = self.work
        with (
            open_crew(self.plan, self.asked.place, self._settings(), also) as (crew, settings),
            Run(crew, self.plan, work.graph, work.state, settings, work.feed, workload=work,
                recovery=self.recovery, adviser=self.adviser) as run,
        ):  # fmt: skip
            run.prepare(memory)
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
            self._save(run, self.asked.steps, trained.state, trained.memory)
            if trained.averaged is not None:
                self.folder.save_averaged(trained.averaged.state_dict())
            self.folder.save_plan(run.plan)
            self.folder.save_timeline(timeline)
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
                self._grow(outcome)
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

    def _save(
        self, run: Run, steps: int, state: Mapping[str, Tensor], memory: Mapping[str, Tensor]
    ) -> None:
        assert self.folder is not None
        plan = run.plan
        record = RunFile(plan.model, plan.strategy, steps, plan.batch, self.asked.seed,
                         self.asked.rule.name)  # fmt: skip
        self.folder.save_state(record, dict(state), dict(memory))
        self._add_metrics({**self.losses, **run.outcome.losses}, steps)

    def _grow(self, outcome: Outcome) -> None:
        """The folder's list of losses grows while the run goes on: minibatches that every device has done."""
        self._add_metrics(outcome.losses, min(outcome.done.values(), default=-1) + 1)

    def _add_metrics(self, losses: Mapping[int, float], end: int) -> None:
        assert self.folder is not None
        due = [s for s in sorted(losses) if s < end and s not in self._saved]
        if due:
            self.folder.add_metrics([{"step": s, "loss": losses[s]} for s in due])
        self._saved.update(due)

    def _resume(self) -> Mapping[str, Tensor]:
        if self.folder is None:
            raise InputError("--resume needs --out DIR, the folder of the run to go on with")
        saved = self.folder.load()
        if saved.run.steps >= self.asked.steps:
            raise InputError(
                f"the run in {self.folder.path} has done {saved.run.steps} steps; "
                f"--steps {self.asked.steps} leaves nothing to do"
            )
        self.work.resume_with(saved.weights)
        rule = self.asked.rule.name
        if saved.run.optimizer not in ("", rule):
            raise InputError(
                f"the run in {self.folder.path} was trained with optimizer {saved.run.optimizer}, and {rule} "
                f"cannot go on with its memory; give --optimizer {saved.run.optimizer}, or another --out"
            )
        self.first = saved.run.steps
        self.folder.forget_metrics(self.first)
        return saved.optimizer
