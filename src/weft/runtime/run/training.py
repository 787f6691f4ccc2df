"""One training run, from open fleet to closed folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.plans.plan import Plan
from weft.program.timeline import Timeline
from weft.runtime.run.coordinator import Coordinator
from weft.runtime.run.feeds import Source, accuracy
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import Place, open_crew
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.record import Folder, RunFile
from weft.runtime.run.results import Step, TrainResult
from weft.runtime.run.swarm import run_class, total_counts
from weft.runtime.run.trainee import Trainee
from weft.runtime.wire.messages import Spans


@dataclass
class Conducted:
    """What a conductor made of a run: under which plan it ended, and what happened on the way."""

    plan: Plan
    losses: dict[int, float]
    events: list[dict[str, Any]]
    timeline: Timeline
    nodes: dict[str, Spans]
    seconds: float


class Conductor(Protocol):
    """Runs minibatches its own way: `weft.adapt` watches them and changes the plan."""

    def first(self, plan: Plan) -> Plan:
        """The plan to begin with."""
        ...

    def also(self, plan: Plan) -> tuple[str, ...]:
        """Devices beside the plan's that may get a part in it."""
        ...

    def conduct(
        self,
        run: Coordinator,
        first: int,
        last: int,
        optimizer_state: Mapping[str, Tensor],
        on_progress: Callable[[Outcome], None],
    ) -> Conducted: ...


class Training:
    def __init__(
        self,
        trainee: Trainee,
        plan: Plan,
        place: Place,
        settings: Settings,
        source: Source,
        steps: int,
        folder: Folder | None,
        on_progress: Callable[[Step], None] | None,
        conductor: Conductor | None,
    ) -> None:
        self.conductor = conductor
        self.events: list[dict[str, Any]] = []
        self.trainee, self.plan, self.place, self.settings = trainee, plan, place, settings
        self.source, self.steps, self.folder = source, steps, folder
        self.on_progress = on_progress
        self.losses: dict[int, float] = {}
        self.training_s = 0.0
        self.first = 0

    def go(self, model: nn.Module, resume: bool, leg: int) -> TrainResult:
        self.first, optimizer_state = self._resume() if resume else (0, {})
        if self.folder:
            self.folder.save_plan(self.plan)
            if not resume:
                self.folder.forget_metrics()
        feed = self.source.feed(self.trainee.graph.inputs[0])
        also = self.conductor.also(self.plan) if self.conductor else ()
        with (
            open_crew(self.plan, self.place, self.settings, also) as (crew, settings),
            run_class(self.plan)(
                crew, self.plan, self.trainee.graph, self.trainee.state, settings, feed, also
            ) as run,
        ):
            run.prepare(optimizer_state)
            if settings.trace is not None:
                run.start_trace()
            for start in range(self.first, self.steps, leg):
                end = min(start + leg, self.steps)
                if self.conductor is None:
                    outcome, pieces = self._leg(run, start, end), None
                else:
                    outcome, pieces = self._conducted(run, start, end, optimizer_state)
                state, optimizer_state = self._save(run, outcome, end)
            timeline, nodes = pieces if pieces is not None else run.timeline()
            self.plan = run.plan
        if self.folder and self.plan.version:  # it has changed on the way
            self.folder.save_plan(self.plan)
        result = TrainResult(
            model=_with_state(model, state), plan=self.plan, steps=self.steps,
            losses=[self.losses[s] for s in sorted(self.losses)], seconds=self.training_s,
            first=self.first, timeline=timeline, nodes=nodes, out=self.folder.path if self.folder else None,
            too_fast=self.trainee.emulation.too_fast if self.trainee.emulation else (),
            events=[*self.events, *run.events],
            radio=total_counts(run, nodes) if self.plan.swarm else Counter(),
        )  # fmt: skip
        if self.folder:
            self.folder.save_timeline(timeline)
        if self.source.test is not None and self.source.classes is not None:
            result.test_accuracy = accuracy(result.model, self.source.test)
        return result

    def _leg(self, run: Coordinator, first: int, last: int) -> dict[int, float]:
        begin = time.monotonic()
        outcome = run.steps(first, last, self._progress(begin))
        self.training_s += time.monotonic() - begin
        return outcome.losses

    def _conducted(
        self, run: Coordinator, first: int, last: int, optimizer_state: Mapping[str, Tensor]
    ) -> tuple[dict[int, float], tuple[Timeline, dict[str, Spans]]]:
        assert self.conductor is not None
        done = self.conductor.conduct(
            run, first, last, optimizer_state, self._progress(time.monotonic())
        )
        self.plan, self.training_s = done.plan, self.training_s + done.seconds
        self.events += done.events
        return done.losses, (done.timeline, done.nodes)

    def _progress(self, begin: float) -> Callable[[Outcome], None]:
        def progress(outcome: Outcome) -> None:
            if self.on_progress and outcome.losses:
                newest = max(outcome.losses)
                seconds = self.training_s + time.monotonic() - begin
                predicted = self.plan.predicted.step_s if self.plan.predicted else None
                self.on_progress(Step(newest + 1, self.steps, outcome.losses[newest], seconds,
                                      predicted, self.plan.batch, self.first))  # fmt: skip

        return progress

    def _save(
        self, run: Coordinator, losses: dict[int, float], last: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Brings the weights home and, where there is a folder, puts them there."""
        self.losses |= losses
        found, optimizer_state = run.collect()
        # what no layer reads stays as it was
        state = {n: found.get(n, self.trainee.state[n]) for n in self.trainee.graph.state}
        if self.folder:
            plan = self.plan
            record = RunFile(plan.model, plan.strategy, last, plan.batch, self.settings.seed)
            self.folder.save_state(record, state, optimizer_state)
            self.folder.add_metrics([{"step": s, "loss": losses[s]} for s in sorted(losses)])
        return state, optimizer_state

    def _resume(self) -> tuple[int, dict[str, Tensor]]:
        if self.folder is None:
            raise InputError("--resume needs --out DIR, the folder of the run to go on with")
        saved = self.folder.load()
        if saved.run.steps >= self.steps:
            raise InputError(
                f"the run in {self.folder.path} has done {saved.run.steps} steps; "
                f"--steps {self.steps} leaves nothing to do"
            )
        mine, theirs = set(self.trainee.graph.state), set(saved.weights)
        if mine != theirs:
            odd = sorted(mine ^ theirs)[:3]
            raise InputError(f"{self.folder.path} holds another network: {', '.join(odd)} differ")
        self.trainee.state.update(saved.weights)
        return saved.run.steps, saved.optimizer


def _with_state(model: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """The user's own module with the trained weights in place."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, tensor in state.items():
            if name in own:
                own[name].copy_(tensor)
    return model
