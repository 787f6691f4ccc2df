"""Training on a fleet: the call behind `weft.train` and `weft train`.

result = weft.train(model, "mnist5k", nn.CrossEntropyLoss(), fleet=fleet, strategy="edgemove+",
                    steps=400, local=True, trace=Trace.load("moving.json", fleet))
result.model          # an ordinary nn.Module with the trained weights
result.events         # what happened on the way
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import nn

from weft.adapt.adaptive import Adaptive
from weft.adapt.replan import Replanning
from weft.adapt.steer import PolicySteering, Steering
from weft.data.user_data import Data, close, opened, own_batch
from weft.errors import InputError
from weft.fleet.faults import Faults
from weft.fleet.faults import check as check_faults
from weft.fleet.fleet import Fleet
from weft.fleet.trace import Trace
from weft.graph.optimizers.user_optimizer import Given, read_optimizer
from weft.graph.optimizers.user_schedule import Given as Schedule
from weft.graph.optimizers.user_schedule import Timetable, read_schedule
from weft.graph.precision import Precision, check_precision
from weft.planning.features import require
from weft.planning.task import BATCH
from weft.plans import registry
from weft.plans.online import OnlineRequest
from weft.plans.plan import Objective, Plan
from weft.plans.profile import Profile
from weft.plans.protocols import PEERS, Feature
from weft.runtime.run.checks import check_layers_whole, is_cross_entropy
from weft.runtime.run.launch import Place
from weft.runtime.run.records.plan_changes import PlanRecord
from weft.runtime.run.records.resumed_plan import with_plan_of
from weft.runtime.run.results import Step, TrainResult
from weft.runtime.run.train import AdviserFor, OnLoss, Options, start
from weft.runtime.run.watch.callbacks import Callback
from weft.runtime.run.watch.evaluation import Metric, Test
from weft.runtime.run.watch.watcher import Watching
from weft.runtime.run.workload.asked import Asked, Loss
from weft.runtime.run.workload.find import strategy_of, workload_of
from weft.runtime.wire.silence import check_patience

LONG = 3000  # minibatches of a run that has time for the papers' cycles
LOOK_EVERY = 50  # minibatches, where a strategy has no cycle of its own
LOOK_S, LEAST_LOOK = 2.0, 8  # on real devices a look comes sooner where minibatches take long
MOST_SEEDS = 2**53  # a whole number that JSON and every random generator take
SLACK = 0.25  # a plan of real devices that is slower than predicted by more is priced again


def train(
    model: nn.Module,
    data: Data,
    loss: Loss,
    *,
    fleet: Fleet | None = None,
    plan: Plan | None = None,
    strategy: str | None = None,
    steps: int = 100,
    batch: int | None = None,
    optimizer: Given = "sgd",
    lr: float | None = None,
    optimizer_options: Mapping[str, object] | None = None,
    no_decay: bool = False,
    schedule: Schedule = None,
    schedule_options: Mapping[str, object] | None = None,
    warmup: int = 0,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    accumulate: int | None = None,
    ema: float | None = None,
    precision: Precision = "float32",
    local: bool = False,
    netns: bool = False,
    join: str | Sequence[str] | None = None,
    profile: Profile | None = None,
    options: Mapping[str, object] | None = None,
    seed: int = 0,
    deadline: float = 30.0,
    patience: float = 1.0,
    out: str | Path | None = None,
    resume: bool = False,
    save_every: int | None = None,
    on_loss: OnLoss = "recover",
    keep_every: int | None = None,
    adapt: bool | None = None,
    replay: str | Path | None = None,
    look_every: int | None = None,
    trace: Trace | None = None,
    faults: Faults | None = None,
    name: str = "",
    group: str = "weft",
    config: str | None = None,
    objective: Objective = "time",
    measure: bool = True,
    say: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[Step], None] | None = None,
    evaluate_every: int | None = None,
    test: Test | None = None,
    metrics: Mapping[str, Metric] | None = None,
    callbacks: Sequence[Callback] = (),
    keep_best: str | None = None,
) -> TrainResult:
    """Plans (unless a plan is given), starts or finds the fleet, trains, and brings the weights home.

    `optimizer` is a name (adamw, rmsprop, ...), a class of torch.optim, `functools.partial` of one,
    or an optimizer over the network's weights, whose groups hold. `optimizer_options` are the arguments of
    its class. `no_decay` spares norms and biases the weight decay. `schedule` is a name (cosine, onecycle,
    ...), a scheduler of torch.optim or a function that makes one from an optimizer; it is asked at every
    minibatch, after `warmup` minibatches of a rising rate. `clip_value` limits every number of a gradient,
    `clip_norm` the norm of all gradients together. `accumulate` cuts a minibatch into so many pieces, whose
    gradients are added up before the update.
    With `precision="bf16"` products are computed in bfloat16, and weights stay float32.
    With `ema` the result has a copy of the model with running means of its weights (`averaged`).
    `deadline` is how long any device waits for another before the run ends with an error: raise it
    where one transfer may take longer. A device that sends no heartbeat for `patience` seconds is left
    out until it is heard again: raise it for slow links and busy machines. `save_every` minibatches lie
    between two saves to `out`.
    `on_loss` says what happens when a device is gone: the others recover and go on, or the run stops
    with an error. `keep_every` minibatches lie between two copies that a run goes back to; by default
    copies cost about 2% of the run. With `adapt` the run watches itself and asks its strategy for a new
    plan when the step time leaves its band, or is far from what was predicted. It is the default on real
    nodes, and for strategies that are made of online decisions (EdgeMove and its baselines). `look_every`
    minibatches lie between two looks: small values follow a changing fleet faster and measure less well.
    `replay` repeats the plans of an earlier run, from its folder, at the same minibatches.
    `objective` is what a plan is chosen for: time, or energy, money or memory by the fleet's numbers.
    Real nodes measure the network's layers where their times are not known yet, unless `measure` is False;
    `say` gets a line about that.
    `trace` makes an emulated fleet change in time. `faults` is a script of what goes wrong in an emulated
    fleet; the result's `faults` say what came of it.
    Every `evaluate_every` minibatches the network is evaluated on this machine: its loss, its accuracy where
    targets are classes, and your own `metrics` (functions of what the network returns and the targets), on
    `test` or the data set's own test samples. `callbacks` are told of every minibatch and evaluation, and may
    stop the run (`weft.Callback`, `weft.EarlyStopping`). `keep_best` names a metric: the weights of its best
    evaluation are kept (`best_state`).
    """
    record = _record(replay, fleet, plan, strategy, adapt)
    if record is not None:
        plan = record.first
    fleet, name_of_strategy = _what_to_run(fleet, plan, strategy)
    _check(steps=steps, keep_every=keep_every, save_every=save_every, evaluate_every=evaluate_every)
    check_seed(seed)
    check_precision(precision)
    watching = Watching(evaluate_every, test, metrics, callbacks, keep_best)
    if evaluate_every is None and (wanting := watching.without_evaluation):
        raise InputError(f"{wanting} needs evaluations: give evaluate_every (--evaluate-every)")
    check_patience(patience)
    if deadline <= 0:
        raise InputError(f"deadline {deadline} is not allowed; it must be above 0 seconds")
    if look_every is not None and look_every < 2:
        raise InputError(f"look_every {look_every} is not allowed; it must be at least 2")
    if trace is not None and not local:
        raise InputError("a trace is for an emulated fleet: it goes with --local")
    if faults is not None:
        if not (local or netns):
            raise InputError("a script of faults is for an emulated fleet: it goes with --local")
        check_faults(faults, fleet)
    rule = read_optimizer(
        optimizer, model, loss=loss if isinstance(loss, nn.Module) else None, lr=lr,
        arguments=optimizer_options, no_decay=no_decay, clip_value=clip_value,
        clip_norm=clip_norm, ema=ema,
    )  # fmt: skip
    make = read_schedule(schedule, steps=steps - warmup, lr=rule.lr, arguments=schedule_options)
    timetable = Timetable(rule, make, steps=steps, warmup=warmup) if make or warmup else None
    if timetable is not None and timetable.looks and evaluate_every is None:
        raise InputError(
            "a schedule that looks at a metric (plateau) needs evaluations: give evaluate_every "
            "(--evaluate-every), or choose a schedule of the number of minibatches, such as cosine"
        )
    data = opened(data, seed)
    batch = _batch(batch, plan, own_batch(data))
    options = _accumulated(accumulate, options or {}, plan, batch)
    ends = (join,) if isinstance(join, str) else tuple(join or ())
    asked = Asked(
        model=model, data=data, loss=loss, fleet=fleet, strategy=name_of_strategy, plan=plan,
        steps=steps, batch=batch, rule=rule,
        timetable=timetable,
        place=Place(local, netns, ends, group=group, config=config), options=options,
        seed=seed, deadline=deadline, patience=patience, profile=profile, measure=measure,
        objective=objective, say=say, precision=precision, name=name, on_progress=on_progress,
    )  # fmt: skip
    adviser = _adviser(asked, False if record else adapt, look_every)
    kept = Options(Path(out) if out is not None else None, resume, save_every, trace, faults, on_loss,
                   keep_every, adviser, watching, record)  # fmt: skip
    wanted: dict[Feature, bool] = {
        "adapt": bool(adapt), "trace": trace is not None, "own loss": not is_cross_entropy(loss),
        "own data": not isinstance(data, str), "plan file": plan is not None,
        "save and resume": resume or save_every is not None,
    }  # fmt: skip
    check_layers_whole(precision, strategy_of(asked), options, plan)
    require(strategy_of(asked), *(feature for feature, is_wanted in wanted.items() if is_wanted))
    try:
        if resume and kept.out and plan is None and strategy_of(asked).workload == PEERS:
            asked = with_plan_of(asked, kept.out)
        return start(asked, kept, workload_of(asked))
    finally:
        close(data)


def _record(
    replay: str | Path | None,
    fleet: Fleet | None,
    plan: Plan | None,
    strategy: str | None,
    adapt: bool | None,
) -> PlanRecord | None:
    """The record of plans to repeat. It has its own plan and fleet."""
    if replay is None:
        return None
    if fleet is not None or plan is not None or strategy is not None:
        raise InputError("--replay has its own plan and fleet: leave --plan, --fleet and -s out")
    if adapt:
        raise InputError("--replay repeats the changes of an earlier run: leave --adapt out")
    return PlanRecord.load(Path(replay))


def _what_to_run(fleet: Fleet | None, plan: Plan | None, strategy: str | None) -> tuple[Fleet, str]:
    if plan is not None:
        if plan.mode != "train":
            raise InputError(f"this plan of {plan.strategy} is for {plan.mode}, not for training")
        if strategy is not None and strategy != plan.strategy:
            raise InputError(
                f"the plan is of strategy {plan.strategy}, but {strategy} was asked for; "
                "give a plan or a strategy"
            )
        return plan.fleet, plan.strategy
    if fleet is None:
        raise InputError("train needs a fleet or a plan")
    return fleet, strategy or registry.DEFAULT


def check_seed(seed: int) -> None:
    """Raises InputError for a seed that torch, or a device, cannot take."""
    if not 0 <= seed < MOST_SEEDS:
        raise InputError(f"seed {seed} is not allowed; it must be at least 0 and below 2**53")


def _check(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and value < 1:
            raise InputError(f"{name} {value} is not allowed; it must be at least 1")


def _batch(batch: int | None, plan: Plan | None, own: int | None) -> int:
    """The samples of a minibatch; `own` where the data comes in minibatches."""
    if plan is not None and batch is not None and batch != plan.batch:
        raise InputError(f"batch {batch} was asked for, but the plan is for batch {plan.batch}")
    chosen = plan.batch if plan else batch
    if own is not None and chosen is not None and own != chosen:
        raise InputError(
            f"the data gives minibatches of {own} samples, but batch {chosen} was asked for; leave the batch "
            "out, or let the data give as many"
        )
    chosen = chosen if chosen is not None else own if own is not None else BATCH["train"]
    if chosen < 1:
        raise InputError(f"batch {chosen} is not allowed; it must be at least 1")
    return chosen


def _accumulated(
    accumulate: int | None, options: Mapping[str, object], plan: Plan | None, batch: int
) -> Mapping[str, object]:
    """The strategy's options; accumulation is its number of micro-batches."""
    if accumulate is None:
        return options
    if not 1 <= accumulate <= batch:
        raise InputError(f"accumulate {accumulate} is not allowed; 1 to batch = {batch} are")
    pieces = plan.micro_batches if plan is not None else options.get("micro_batches", accumulate)
    if str(pieces) != str(accumulate):
        raise InputError(
            f"accumulate {accumulate} is the number of micro-batches, which is {pieces} already; give one"
        )
    return options if plan is not None else {**options, "micro_batches": accumulate}


def _adviser(asked: Asked, adapt: bool | None, look_every: int | None) -> AdviserFor | None:
    """Who may change the plan: a strategy's own policy, or the strategy asked again."""
    strategy = strategy_of(asked)
    online, real = strategy.online is not None, not asked.place.emulated
    if adapt and asked.objective != "time":
        raise InputError(
            f"--adapt watches the step time; a plan for {asked.objective} is not changed for it: leave it out"
        )
    if adapt is None and asked.objective != "time":
        adapt = online
    if adapt is None:
        # A plan file runs as it is.
        adapt = online or (
            real and asked.plan is None and strategy.replan and "adapt" not in strategy.refuses
        )
    if not adapt:
        return None
    scale = min(1.0, asked.steps / LONG)

    def steering(plan: Plan) -> Steering:
        if online:
            request = OnlineRequest(plan, asked.options, look_every, scale, asked.seed)
            return PolicySteering(strategy.make_online(request))
        every, slack = look_every or LOOK_EVERY, SLACK if real else None
        if real and look_every is None and plan.predicted is not None:
            every = min(
                every, max(LEAST_LOOK, math.ceil(LOOK_S / max(plan.predicted.seconds, 1e-6)))
            )
        return Replanning(asked.strategy, plan, options=asked.options, every=every, slack=slack)

    return lambda plan: Adaptive(steering)
