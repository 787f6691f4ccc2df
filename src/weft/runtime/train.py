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
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor, nn

from weft import api
from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.trace import Trace
from weft.graph.capture import capture, capture_loss, state_of
from weft.graph.network import Graph
from weft.graph.optimizer import Optimizer
from weft.plan.derive import derive_profile
from weft.plan.plan import Plan
from weft.plan.profile import Profile
from weft.program.timeline import Timeline
from weft.runtime import train_peers
from weft.runtime.coordinator import Coordinator, Outcome
from weft.runtime.emulate import Emulation, emulation
from weft.runtime.feeds import Data, Source, accuracy, source_of
from weft.runtime.jobs import Settings
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
    trace: Trace | None = None,
    conductor: Conductor | None = None,
    on_progress: Callable[[Step], None] | None = None,
) -> TrainResult:
    """Plans (unless a plan is given), starts or finds the fleet, trains, and brings the weights home.

    `deadline` is how long any device waits for another before the run ends with an error: raise it
    where one transfer may take longer. `save_every` writes the weights to `out` that often; each
    time the pipeline runs empty, so small values cost speed. `trace` makes an emulated fleet change
    in time; `conductor` is who may change the plan meanwhile (`weft.adapt`).
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
    chosen_fleet = plan.fleet if plan else fleet
    if chosen_fleet is None:
        raise InputError("train needs a fleet or a plan")
    if train_peers.wanted(strategy, plan):
        if resume or save_every:
            raise InputError("peers keep their weights to themselves: no --resume and --save-every")
        return train_peers.train_peers(model, data, train_peers.Asked(
            chosen_fleet, strategy, plan, steps, batch, rule, place, options or {}, seed, deadline,
            profile, Path(out) if out is not None else None, name, on_progress,
        ))  # fmt: skip
    source = source_of(data, batch, seed)
    trainee = prepare(
        model, source, loss, chosen_fleet, batch=batch, rule=rule, emulated=place.emulated,
        profile=profile, name=name,
    )  # fmt: skip
    if trace is not None and not local:
        raise InputError("a trace is for an emulated fleet: it goes with --local")
    decided = _decide(plan, strategy, trainee, chosen_fleet, batch, profile, options, rule)
    if conductor is not None:
        decided = conductor.first(decided)
    folder = Folder(Path(out)) if out is not None else None
    settings = Settings(
        optimizer=rule, seed=seed, deadline_s=deadline, paced=trainee.paced, data=source.name,
        trace=trace,
    )  # fmt: skip
    run = _Run(trainee, decided, place, settings, source, steps, folder, on_progress, conductor)
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
