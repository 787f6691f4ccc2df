"""Trains a network on a fleet: the one call behind `weft train` and `weft.train`.

result = weft.train(model, "mnist5k", nn.CrossEntropyLoss(), fleet=fleet, strategy="chain",
                    steps=200, local=True)
result.model          # an ordinary nn.Module with the trained weights
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from torch import nn

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.trace import Trace
from weft.graph.optimizer import Optimizer
from weft.planning.decide import decide
from weft.planning.task import BATCH, make_task
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.runtime.run import train_peers
from weft.runtime.run.feeds import Data, source_of
from weft.runtime.run.jobs import Settings
from weft.runtime.run.launch import Place
from weft.runtime.run.record import Folder
from weft.runtime.run.results import Step, TrainResult
from weft.runtime.run.trainee import Loss, Trainee, prepare, profile_for
from weft.runtime.run.training import Conductor, Training
from weft.simulate.price import priced


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
        batch = plan.batch if plan else BATCH["train"]
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
    run = Training(trainee, decided, place, settings, source, steps, folder, on_progress, conductor)
    return run.go(model, resume, save_every or steps)


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
        task = make_task(costs, fleet, batch=batch, mode="train", options=options,
                             graph=trainee.graph, optimizer=rule.name)  # fmt: skip
        return decide(strategy, task)
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
