"""Commands that run on a fleet: train, infer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from weft.commands import values
from weft.commands.app import app, say, show, show_json
from weft.commands.options import (
    Accumulate,
    Average,
    Batch,
    Classes,
    ClipNorm,
    ClipValue,
    Deadline,
    EvaluateEvery,
    Group,
    InputShape,
    Join,
    Json,
    KeepBest,
    LabelSmoothing,
    LearningRate,
    Local,
    LogName,
    Logs,
    Measure,
    Model,
    Namespaces,
    NoDecay,
    Objective,
    ObjectiveName,
    Optimizer,
    OptimizerSettings,
    Otel,
    Patience,
    PlanFile,
    Precision,
    PrecisionName,
    ProfileFile,
    Schedule,
    ScheduleSettings,
    Settings,
    SomeFleet,
    SomeStrategy,
    StopAfter,
    Warmup,
    ZenohConfig,
)
from weft.errors import InputError, WeftError

if TYPE_CHECKING:
    from weft.fleet.fleet import Fleet
    from weft.plans.plan import Plan
    from weft.runtime.run.results import Step
    from weft.runtime.run.watch.callbacks import Callback


class OnLoss(str, Enum):
    """What happens when a device is lost: the values of `--on-loss`."""

    recover = "recover"
    stop = "stop"


OnLossOption = Annotated[
    OnLoss, typer.Option(help="When a device is lost: the others go on, or the run stops.")
]


@app.command()
def train(
    model: Model,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            "-d",
            help="A data set; mnist5k needs no file. Or file.py:function (a DataLoader, a Dataset, tensors).",
        ),
    ],
    steps: Annotated[int, typer.Option("--steps", "-n", help="Minibatches in all.")],
    fleet: SomeFleet = None,
    strategy: SomeStrategy = None,
    plan: PlanFile = None,
    batch: Batch = None,
    local: Local = False,
    netns: Namespaces = False,
    join: Join = None,
    group: Group = "weft",
    out: Annotated[Path | None, typer.Option(help="Folder for weights, metrics, timeline.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out.")] = False,
    save_every: Annotated[int | None, typer.Option(help="Steps between saves to --out.")] = None,
    optimizer: Optimizer = "sgd",
    lr: LearningRate = None,
    set_optimizer: OptimizerSettings = None,
    no_decay: NoDecay = False,
    schedule: Schedule = None,
    set_schedule: ScheduleSettings = None,
    warmup: Warmup = 0,
    clip_value: ClipValue = None,
    clip_norm: ClipNorm = None,
    accumulate: Accumulate = None,
    ema: Average = None,
    precision: Precision = PrecisionName.float32,
    label_smoothing: LabelSmoothing = 0.0,
    evaluate_every: EvaluateEvery = None,
    keep_best: KeepBest = None,
    stop_after: StopAfter = None,
    log: Logs = None,
    otel: Otel = False,
    seed: Annotated[int, typer.Option(help="For weights and the order of samples.")] = 0,
    profile: ProfileFile = None,
    settings: Settings = None,
    deadline: Deadline = 30.0,
    patience: Patience = 1.0,
    classes: Classes = None,
    config: ZenohConfig = None,
    measure: Measure = True,
    objective: Objective = ObjectiveName.time,
    adapt: Annotated[
        bool | None,
        typer.Option(
            help="Watch the run and re-plan; on by default with --join and for edgemove's strategies."
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(help="Folder of an earlier run: repeat its plans at the same minibatches."),
    ] = None,
    look_every: Annotated[
        int | None,
        typer.Option(
            help="Minibatches between two looks of an adaptive run. Default: from its length."
        ),
    ] = None,
    on_loss: OnLossOption = OnLoss.recover,
    trace: Annotated[
        Path | None,
        typer.Option(help="How an emulated fleet changes in time (JSON or TOML); with --local."),
    ] = None,
    json: Json = False,
) -> None:
    """Train a network on a fleet: emulated on this machine (--local) or real (--join).

    \b
    Example:  weft train lenet5 --data mnist5k --fleet fleet.toml -s chain --steps 100 --local
    """
    opened = _opened(fleet, strategy, plan, emulated=local or netns, replay=replay)
    if not (local or netns or join):
        say("looking for nodes on the local network (--local emulates the fleet here)")
    import torch
    from torch import nn

    from weft.adapt.train import check_seed
    from weft.adapt.train import train as run
    from weft.api import load_model
    from weft.data.user_data import class_count, named_data, sample_shape
    from weft.fleet.trace import Trace
    from weft.plans.derive import load_profile
    from weft.report.otel import TraceSender
    from weft.report.results import train_document, train_table
    from weft.zoo.loading import short_name

    if trace is not None and opened.fleet is None:
        raise InputError("--trace does not go with --replay: the changes of plan are known already")
    changes = Trace.load(trace, opened.fleet) if trace is not None and opened.fleet else None
    check_seed(seed)
    traces = [TraceSender()] if otel else []
    samples = named_data(data, seed)
    torch.manual_seed(seed)
    count = classes or (None if ":" in model else class_count(samples))
    module, _ = load_model(model, sample_shape(samples), count)
    if not 0 <= label_smoothing < 1:
        raise InputError(f"--label-smoothing {label_smoothing} is not allowed; 0 to below 1 are")
    loss = nn.CrossEntropyLoss(label_smoothing=label_smoothing)
    with progress_bar(steps, quiet=json) as on_progress:
        result = run(
            module, samples, loss, fleet=opened.fleet, plan=opened.plan,
            strategy=opened.strategy, steps=steps, on_loss=on_loss.value, batch=batch,
            optimizer=optimizer, lr=lr, no_decay=no_decay,
            optimizer_options=values.arguments(set_optimizer or [], "--set-optimizer"),
            schedule=schedule, warmup=warmup, clip_value=clip_value, ema=ema,
            precision=precision.value,
            clip_norm=clip_norm, accumulate=accumulate,
            schedule_options=values.arguments(set_schedule or [], "--set-schedule"),
            local=local, netns=netns, join=join,
            profile=load_profile(profile) if profile else None,
            options=values.settings(settings or []), seed=seed, deadline=deadline,
            patience=patience, out=out,
            resume=resume, save_every=save_every, name=short_name(model), config=config,
            group=group, measure=measure, objective=objective.value, adapt=adapt, replay=replay,
            look_every=look_every, trace=changes, say=say, on_progress=on_progress,
            evaluate_every=evaluate_every, keep_best=keep_best,
            callbacks=[*_callbacks(stop_after, keep_best, log or [], out), *traces],
        )  # fmt: skip
    if result.too_fast:
        say(f"note: {', '.join(result.too_fast)} ran at this machine's speed, which is slower")
    if json:
        show_json(train_document(result))
    else:
        show(train_table(result))
    if result.unsaved:
        raise WeftError(result.unsaved)
    for sender in traces:
        spans = sender.send(result.timeline, f"{short_name(model)} by {result.plan.strategy}")
        say(f"sent {spans} spans by OpenTelemetry")


def _callbacks(
    stop_after: int | None, metric: str | None, logs: list[LogName], out: Path | None
) -> list[Callback]:
    from weft.runtime.run.watch.callbacks import EarlyStopping
    from weft.runtime.run.watch.evaluation import LOSS
    from weft.runtime.run.watch.logs import CsvLog, TensorBoardLog

    if logs and out is None:
        raise InputError("--log needs --out DIR, the folder of the run")
    callbacks: list[Callback] = []
    if stop_after is not None:
        callbacks.append(EarlyStopping(metric or LOSS, stop_after))
    for name in logs:
        assert out is not None
        is_csv = name is LogName.csv
        callbacks.append(CsvLog(out / "log.csv") if is_csv else TensorBoardLog(out / "tensorboard"))
    return callbacks


@app.command()
def infer(
    model: Model,
    fleet: SomeFleet = None,
    strategy: SomeStrategy = None,
    plan: PlanFile = None,
    input: Annotated[
        Path | None,
        typer.Option(
            help="A .safetensors file with the input, or with each input by its name; random if not given."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Outputs (.safetensors).")
    ] = None,
    repeat: Annotated[
        int, typer.Option(help="How often to answer; the median latency is shown.")
    ] = 10,
    weights: Annotated[
        Path | None, typer.Option(help="weights.safetensors of a run; random if not given.")
    ] = None,
    batch: Batch = None,
    local: Local = False,
    netns: Namespaces = False,
    join: Join = None,
    group: Group = "weft",
    profile: ProfileFile = None,
    settings: Settings = None,
    deadline: Deadline = 30.0,
    patience: Patience = 1.0,
    on_loss: OnLossOption = OnLoss.recover,
    input_shape: InputShape = None,
    classes: Classes = None,
    config: ZenohConfig = None,
    measure: Measure = True,
    objective: Objective = ObjectiveName.time,
    json: Json = False,
) -> None:
    """Run a network on a fleet and show how long an answer takes.

    \b
    Example:  weft infer lenet5 --fleet fleet.toml --strategy chain --local --repeat 20
    """
    if repeat < 1:
        raise InputError(f"--repeat {repeat} is not allowed; it must be at least 1")
    opened = _opened(fleet, strategy, plan, emulated=local or netns)
    assert opened.fleet is not None
    from weft.plans.derive import load_profile
    from weft.report.results import infer_document, infer_table
    from weft.runtime.run.inference import infer as run

    result = run(
        model, opened.fleet, opened.strategy, plan=opened.plan, repeat=repeat, batch=batch,
        input_path=input, weights=weights, output=output, local=local, netns=netns, join=join,
        profile=load_profile(profile) if profile else None,
        options=values.settings(settings or []), deadline=deadline, patience=patience,
        on_loss=on_loss.value, input_shape=values.shape(input_shape), classes=classes, config=config,
        group=group, measure=measure, objective=objective.value, say=say,
    )  # fmt: skip
    if output is not None:
        say(f"wrote {output}")
    if json:
        show_json(infer_document(result))
    else:
        show(infer_table(result))


class Opened(NamedTuple):
    """The input of a run: a fleet and a strategy, or a plan that has both, or nothing for a replay."""

    fleet: Fleet | None
    strategy: str | None
    plan: Plan | None


def _opened(
    fleet: Path | None,
    strategy: str | None,
    plan: Path | None,
    *,
    emulated: bool,
    replay: Path | None = None,
) -> Opened:
    """Reads the files. The process of the emulated devices imports torch at the same time as this one."""
    from weft.fleet.fleet import Fleet
    from weft.planning.decide import load_plan
    from weft.plans import registry
    from weft.runtime.emulate.forked import warm

    if replay is not None:
        if fleet is not None or strategy is not None or plan is not None:
            raise InputError("--replay has its own plans: leave --fleet, -s and --plan out")
        opened = Opened(None, None, None)
    elif plan is not None:
        loaded = load_plan(plan)
        _check_same(loaded, plan, fleet, strategy)
        opened = Opened(loaded.fleet, None, loaded)
    else:
        if fleet is None or strategy is None:
            raise InputError("give --fleet and --strategy, or --plan with a plan file")
        registry.get(strategy)
        opened = Opened(Fleet.load(fleet), strategy, None)
    if emulated:
        warm()
    return opened


def _check_same(loaded: Plan, path: Path, fleet: Path | None, strategy: str | None) -> None:
    """A plan file runs as it is: its own fleet and strategy may be named again, others are refused."""
    from weft.fleet.fleet import Fleet

    if strategy is not None and strategy != loaded.strategy:
        raise InputError(
            f"{path} is a plan of {loaded.strategy}, not of {strategy}: leave -s out, or --plan"
        )
    if fleet is not None and Fleet.load(fleet) != loaded.fleet:
        raise InputError(
            f"{path} was made for another fleet than {fleet}: leave --fleet out to run the plan as it is, "
            "or plan again for this fleet"
        )


WIDE = 110  # columns, for all that the bar can say


@contextlib.contextmanager
def progress_bar(steps: int, quiet: bool = False) -> Iterator[Callable[[Step], None]]:
    """A bar with loss, samples per second, and predicted against measured step time, on stderr."""
    from weft.report.words import seconds

    console = Console(stderr=True, quiet=quiet)
    if not console.is_terminal:
        console = Console(stderr=True, quiet=quiet, width=WIDE)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"), TimeRemainingColumn(compact=True),
        console=console, transient=False,
    ) as bar:  # fmt: skip
        task = bar.add_task("starting", total=steps, told="")

        def on_progress(step: Step) -> None:
            done = step.done - step.first
            rate = done * step.batch / step.seconds if step.seconds else 0.0
            text = f"loss {step.loss:.3f}" if step.loss is not None else ""
            if console.width >= WIDE:  # else the count of minibatches would be cut
                text += f"  {rate:.0f} samples/s"
            if step.predicted_step_s is not None and done:
                measured = seconds(step.seconds / done)
                text += f"  step {measured} (predicted {seconds(step.predicted_step_s)})"
            if step.evaluation is not None:
                text += f"  after {step.evaluation.step}: {step.evaluation}"
            bar.update(
                task, completed=step.done, total=step.steps, description=step.what, told=text
            )

        try:
            yield on_progress
        except InputError:
            bar.update(task, visible=False)  # it was refused: there is nothing to show
            raise
