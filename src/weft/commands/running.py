"""Really doing it: train, infer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from weft.api import load_model
from weft.commands import values
from weft.commands.app import app, say, show, show_json
from weft.commands.options import (
    Batch,
    Classes,
    Deadline,
    FleetFile,
    InputShape,
    Join,
    Json,
    Local,
    Model,
    Namespaces,
    ProfileFile,
    Settings,
    Strategy,
    ZenohConfig,
)
from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.trace import Trace
from weft.plans import registry
from weft.plans.derive import load_profile
from weft.report.words import seconds

if TYPE_CHECKING:
    from weft.runtime.run.results import Step


@app.command()
def train(
    model: Model,
    data: Annotated[str, typer.Option("--data", "-d", help="A data set; mnist5k needs no file.")],
    fleet: FleetFile,
    strategy: Strategy,
    steps: Annotated[int, typer.Option("--steps", "-n", help="Minibatches in all.")],
    batch: Batch = None,
    local: Local = False,
    netns: Namespaces = False,
    join: Join = None,
    out: Annotated[Path | None, typer.Option(help="Folder for weights, metrics, timeline.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out.")] = False,
    save_every: Annotated[int | None, typer.Option(help="Steps between saves to --out.")] = None,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.")] = "sgd",
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; 0.05, or 0.001 for adam.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights and the order of samples.")] = 0,
    profile: ProfileFile = None,
    settings: Settings = None,
    deadline: Deadline = 30.0,
    classes: Classes = None,
    config: ZenohConfig = None,
    adapt: Annotated[
        bool | None,
        typer.Option(help="Watch the run and re-plan; edgemove and its like do so by themselves."),
    ] = None,
    look_every: Annotated[
        int | None,
        typer.Option(help="Minibatches between two looks of an adaptive run; else by its length."),
    ] = None,
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
    registry.get(strategy)
    found = Fleet.load(fleet)
    if not (local or netns or join):
        say("looking for nodes on the local network (--local emulates the fleet here)")
    import torch
    from torch import nn

    from weft.adapt.train import train as run
    from weft.data import load
    from weft.report.results import train_document, train_table
    from weft.zoo.loading import short_name

    changes = Trace.load(trace, found) if trace is not None else None
    dataset = load(data)
    torch.manual_seed(seed)
    module, _ = load_model(
        model,
        tuple(dataset.train_x.shape[1:]),
        classes or (None if ":" in model else dataset.classes),
    )
    with progress_bar(steps, quiet=json) as on_progress:
        result = run(
            module, data, nn.CrossEntropyLoss(), fleet=found, strategy=strategy, steps=steps,
            batch=batch, optimizer=optimizer, lr=lr, local=local, netns=netns, join=join,
            profile=load_profile(profile) if profile else None,
            options=values.settings(settings or []), seed=seed, deadline=deadline, out=out,
            resume=resume, save_every=save_every, name=short_name(model), config=config,
            adapt=adapt, look_every=look_every, trace=changes, on_progress=on_progress,
        )  # fmt: skip
    if result.too_fast:
        say(f"note: {', '.join(result.too_fast)} ran at this machine's speed, which is slower")
    if json:
        show_json(train_document(result))
    else:
        show(train_table(result))


@app.command()
def infer(
    model: Model,
    fleet: FleetFile,
    strategy: Strategy,
    input: Annotated[
        Path | None, typer.Option(help="A .safetensors file with one tensor; random if not given.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Outputs (.safetensors).")
    ] = None,
    repeat: Annotated[int, typer.Option(help="How often; the median latency is told.")] = 10,
    weights: Annotated[
        Path | None, typer.Option(help="weights.safetensors of a run; random if not given.")
    ] = None,
    batch: Batch = None,
    local: Local = False,
    netns: Namespaces = False,
    join: Join = None,
    profile: ProfileFile = None,
    settings: Settings = None,
    deadline: Deadline = 30.0,
    input_shape: InputShape = None,
    classes: Classes = None,
    config: ZenohConfig = None,
    json: Json = False,
) -> None:
    """Run a network on a fleet and say how long an answer takes.

    \b
    Example:  weft infer lenet5 --fleet fleet.toml --strategy chain --local --repeat 20
    """
    registry.get(strategy)
    if repeat < 1:
        raise InputError(f"--repeat {repeat} is not allowed; it must be at least 1")
    found = Fleet.load(fleet)
    from weft.report.results import infer_document, infer_table
    from weft.runtime.run.inference import infer as run

    result = run(
        model, found, strategy, repeat=repeat, batch=1 if batch is None else batch,
        input_path=input, weights=weights, output=output, local=local, netns=netns, join=join,
        profile=load_profile(profile) if profile else None,
        options=values.settings(settings or []), deadline=deadline,
        input_shape=values.shape(input_shape), classes=classes, config=config,
    )  # fmt: skip
    if output is not None:
        say(f"wrote {output}")
    if json:
        show_json(infer_document(result))
    else:
        show(infer_table(result))


@contextlib.contextmanager
def progress_bar(steps: int, quiet: bool = False) -> Iterator[Callable[[Step], None]]:
    """A bar with loss, samples per second, and predicted against measured step time, on stderr."""
    console = Console(stderr=True, quiet=quiet)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"), TimeRemainingColumn(),
        console=console, transient=False,
    ) as bar:  # fmt: skip
        task = bar.add_task("starting", total=steps, told="")

        def on_progress(step: Step) -> None:
            done = step.done - step.first
            rate = done * step.batch / step.seconds if step.seconds else 0.0
            told = f"loss {step.loss:.3f}  {rate:.0f} samples/s" if step.loss is not None else ""
            if step.predicted_step_s is not None and done:
                measured = seconds(step.seconds / done)
                told += f"  step {measured} (predicted {seconds(step.predicted_step_s)})"
            bar.update(
                task, completed=step.done, total=step.steps, description=step.what, told=told
            )

        yield on_progress
