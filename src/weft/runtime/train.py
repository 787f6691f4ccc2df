"""Trains a network on a fleet: the one call behind `weft train` and `weft.train`.

result = weft.train(model, "mnist5k", nn.CrossEntropyLoss(), fleet=fleet, strategy="chain",
                    steps=200, local=True)
result.model          # an ordinary nn.Module with the trained weights
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from weft import api
from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.graph.capture import capture, capture_loss, state_of
from weft.graph.network import Graph
from weft.graph.optimizer import Optimizer
from weft.plan.derive import derive_profile
from weft.plan.plan import Plan
from weft.plan.profile import Profile
from weft.program.timeline import Timeline
from weft.runtime.coordinator import Coordinator, Outcome, Settings
from weft.runtime.emulate import Emulation, emulation
from weft.runtime.feeds import Data, Source, accuracy, source_of
from weft.runtime.launch import Place, open_crew
from weft.runtime.messages import Spans
from weft.runtime.record import Folder, RunFile
from weft.runtime.swarm import run_class, total_counts
from weft.simulate.price import priced

Loss = nn.Module | Callable[[Tensor, Tensor], Tensor]


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


@dataclass
class TrainResult:
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
    radio: Counter[str] = field(default_factory=Counter)  # a swarm's messages, packets and losses
    out: Path | None = None

    @property
    def step_s(self) -> float:
        """Measured seconds per minibatch in the steady state."""
        return self.timeline.step_s

    @property
    def predicted_step_s(self) -> float:
        assert self.plan.predicted is not None
        return self.plan.predicted.seconds


@dataclass(frozen=True)
class Trainee:
    """A network ready to be planned: captured with its loss, and measured where it is emulated."""

    graph: Graph
    state: dict[str, Tensor]
    emulation: Emulation | None

    @property
    def paced(self) -> frozenset[str]:
        return self.emulation.paced if self.emulation else frozenset()


def train(
    model: nn.Module,
    data: Data,
    loss: Loss,
    *,
    fleet: Fleet | None = None,
    plan: Plan | None = None,
    strategy: str = "chain",
    steps: int = 100,
    batch: int | None = None,
    optimizer: Optimizer | str = "sgd",
    lr: float | None = None,
    local: bool = False,
    netns: bool = False,
    join: str | Sequence[str] | None = None,
    profile: Profile | None = None,
    options: Mapping[str, object] | None = None,
    seed: int = 0,
    deadline: float = 30.0,
    out: str | Path | None = None,
    resume: bool = False,
    save_every: int | None = None,
    name: str = "",
    group: str = "weft",
    config: str | None = None,
    on_progress: Callable[[Step], None] | None = None,
) -> TrainResult:
    """Plans (unless a plan is given), starts or finds the fleet, trains, and brings the weights home.

    `deadline` is how long any device waits for another before the run ends with an error: raise it
    where one transfer may take longer. `save_every` writes the weights to `out` that often; each
    time the pipeline runs empty, so small values cost speed.
    """
    if steps < 1:
        raise InputError(f"steps {steps} is not allowed; it must be at least 1")
    if deadline <= 0:
        raise InputError(f"deadline {deadline} is not allowed; it must be above 0 seconds")
    place = Place(local, netns, (join,) if isinstance(join, str) else tuple(join or ()),
                  group=group, config=config)  # fmt: skip
    rule = _optimizer(optimizer, lr)
    if batch is None:
        batch = plan.batch if plan else api.BATCH["train"]
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")
    source = source_of(data, batch, seed)
    chosen_fleet = plan.fleet if plan else fleet
    if chosen_fleet is None:
        raise InputError("train needs a fleet or a plan")
    trainee = prepare(
        model, source, loss, chosen_fleet, batch=batch, rule=rule, emulated=place.emulated,
        profile=profile, name=name,
    )  # fmt: skip
    decided = _decide(plan, strategy, trainee, chosen_fleet, batch, profile, options, rule)
    folder = Folder(Path(out)) if out is not None else None
    settings = Settings(
        optimizer=rule, seed=seed, deadline_s=deadline, paced=trainee.paced, data=source.name
    )
    run = _Run(trainee, decided, place, settings, source, steps, folder, on_progress)
    return run.go(model, resume, save_every or steps)


def prepare(
    model: nn.Module,
    source: Source,
    loss: Loss,
    fleet: Fleet,
    *,
    batch: int,
    rule: Optimizer,
    emulated: bool,
    profile: Profile | None = None,
    name: str = "",
) -> Trainee:
    """Captures the network and its loss; measures it where the fleet is emulated here."""
    graph = capture(model, source.example, name=name)
    graph = capture_loss(graph, loss, source.target)
    state = state_of(model, loss if isinstance(loss, nn.Module) else None)
    measured = None
    if emulated:
        measured = emulation(
            graph, state, fleet, batch=batch, training=True, optimizer=rule, given=profile
        )
    return Trainee(graph, state, measured)


def profile_for(trainee: Trainee, fleet: Fleet, given: Profile | None) -> Profile:
    """What a plan of this run is made for: the emulated times, else the given or derived ones."""
    if trainee.emulation is not None:
        return trainee.emulation.profile
    return given if given is not None else derive_profile(trainee.graph, fleet)


def _decide(
    plan: Plan | None,
    strategy: str,
    trainee: Trainee,
    fleet: Fleet,
    batch: int,
    profile: Profile | None,
    options: Mapping[str, object] | None,
    rule: Optimizer,
) -> Plan:
    costs = profile_for(trainee, fleet, profile)
    if plan is None:
        task = api.make_task(costs, fleet, batch=batch, mode="train", options=options,
                             graph=trainee.graph, optimizer=rule.name)  # fmt: skip
        return api.decide(strategy, task)
    if plan.mode != "train":
        raise InputError(f"this plan of {plan.strategy} is for {plan.mode}, not for training")
    if len(plan.profile.layers) != len(trainee.graph.layers) or plan.batch != batch:
        raise InputError(
            f"the plan is for {len(plan.profile.layers)} layers and batch {plan.batch}; "
            f"this is {len(trainee.graph.layers)} layers and batch {batch}"
        )
    return priced(msgspec.structs.replace(plan, profile=costs))


def _optimizer(given: Optimizer | str, lr: float | None) -> Optimizer:
    if isinstance(given, Optimizer):
        return given
    rate = lr if lr is not None else (0.001 if given.startswith("adam") else 0.05)
    if not 0 < rate < 1e6:
        raise InputError(f"learning rate {rate} is not allowed; it must be above 0")
    try:
        return msgspec.convert({"name": given, "lr": rate}, Optimizer)
    except msgspec.ValidationError as error:
        raise InputError(
            f"optimizer {given!r}: {error}; there are sgd, momentum, adam, adamw"
        ) from None


class _Run:
    """One training run, from open fleet to closed folder."""

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
    ) -> None:
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
        with (
            open_crew(self.plan, self.place, self.settings) as (crew, settings),
            run_class(self.plan)(
                crew, self.plan, self.trainee.graph, self.trainee.state, settings, feed
            ) as run,
        ):
            run.prepare(optimizer_state)
            for start in range(self.first, self.steps, leg):
                state = self._leg(run, start, min(start + leg, self.steps))
            timeline, nodes = run.timeline()
            self.plan = run.plan
        if self.folder and self.plan.version:  # it has changed on the way
            self.folder.save_plan(self.plan)
        result = TrainResult(
            model=_with_state(model, state), plan=self.plan, steps=self.steps,
            losses=[self.losses[s] for s in sorted(self.losses)], seconds=self.training_s,
            first=self.first, timeline=timeline, nodes=nodes, out=self.folder.path if self.folder else None,
            too_fast=self.trainee.emulation.too_fast if self.trainee.emulation else (),
            events=run.events, radio=total_counts(run, nodes) if self.plan.swarm else Counter(),
        )  # fmt: skip
        if self.folder:
            self.folder.save_timeline(timeline)
        if self.source.test is not None and self.source.classes is not None:
            result.test_accuracy = accuracy(result.model, self.source.test)
        return result

    def _leg(self, run: Coordinator, first: int, last: int) -> dict[str, Tensor]:
        begin = time.monotonic()

        def progress(outcome: Outcome) -> None:
            if self.on_progress and outcome.losses:
                newest = max(outcome.losses)
                seconds = self.training_s + time.monotonic() - begin
                predicted = self.plan.predicted.step_s if self.plan.predicted else None
                self.on_progress(Step(newest + 1, self.steps, outcome.losses[newest], seconds,
                                      predicted, self.plan.batch, self.first))  # fmt: skip

        outcome = run.steps(first, last, progress)
        self.training_s += time.monotonic() - begin
        self.losses |= outcome.losses
        found, optimizer_state = run.collect()
        # what no layer reads stays as it was
        state = {n: found.get(n, self.trainee.state[n]) for n in self.trainee.graph.state}
        if self.folder:
            plan = self.plan
            record = RunFile(plan.model, plan.strategy, last, plan.batch, self.settings.seed)
            self.folder.save_state(record, state, optimizer_state)
            self.folder.add_metrics(
                [{"step": s, "loss": outcome.losses[s]} for s in sorted(outcome.losses)]
            )
        return state

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
