"""`weft chaos`: trains again and again while devices are killed, and shows what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.commands import values
from weft.commands.app import app, say, show, show_json
from weft.commands.options import (
    Batch,
    Json,
    LearningRate,
    Model,
    Optimizer,
    Patience,
    Settings,
    SomeFleet,
    Strategy,
)
from weft.errors import InputError, WeftError

if TYPE_CHECKING:
    from weft.chaos.report import Report
    from weft.chaos.scenes import Scene


@app.command()
def chaos(
    model: Model,
    strategy: Strategy,
    kills: Annotated[
        int, typer.Option(help="Faults in all; runs go on until they have come.")
    ] = 10,
    seed: Annotated[
        int, typer.Option(help="For who is hit and when: the same seed, the same script.")
    ] = 0,
    fleet: SomeFleet = None,
    data: Annotated[
        str, typer.Option("--data", "-d", help="A data set, or file.py:function.")
    ] = "digits",
    scenes: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="What goes wrong: kill, restart, silence, cut, slow, two, recovery, save, coordinator or "
            "disk.",
        ),
    ] = "kill",
    each: Annotated[int, typer.Option(help="Faults in one run.")] = 4,
    steps: Annotated[int, typer.Option("--steps", "-n", help="Minibatches of one run.")] = 250,
    batch: Batch = None,
    optimizer: Optimizer = "sgd",
    lr: LearningRate = None,
    settings: Settings = None,
    patience: Patience = 1.0,
    limit: Annotated[
        float, typer.Option(help="Seconds after which a run counts as hanging.")
    ] = 180.0,
    json: Json = False,
) -> None:
    """Train on an emulated fleet while its devices are killed and come back, and show what was lost.

    Every run ends with a row: how it ended, how long each recovery took, and how far its weights are from
    those of a run in which nothing went wrong. Exit code 1 if a run hangs, is lost, or ends with other
    weights than it must have.

    \b
    Example:  weft chaos cnn5 --strategy chain --kills 10 --seed 1
              weft chaos lenet5 -s edgemove+ --data mnist5k --fleet fleet.toml --scenes kill,silence
    """
    for name, value, least in (("kills", kills, 1), ("each", each, 1), ("steps", steps, 20)):
        if value < least:
            raise InputError(f"--{name} {value} is not allowed; it must be at least {least}")
    if not 1 <= limit <= 86_400:
        raise InputError(f"--limit {limit} is not allowed; 1 to 86400 seconds are")
    chosen = _scenes(scenes)
    from weft.chaos.chaos import Asked
    from weft.chaos.chaos import chaos as run
    from weft.chaos.table import chaos_table
    from weft.chaos.trial import Trial
    from weft.plans import registry

    registry.get(strategy)
    trial = Trial(
        model, data, _fleet_text(model, data, fleet, strategy, batch), strategy, steps, "",
        batch=batch, optimizer=optimizer, lr=lr, options=values.settings(settings or []),
        seed=seed, patience=patience, look_every=10,
    )  # fmt: skip
    report = run(Asked(trial, chosen, seed, min(each, kills), limit_s=limit), kills, _tell)
    if json:
        show_json(report.document())
    else:
        show(chaos_table(report))
    if report.failed:
        raise WeftError(
            "a run hung, was lost, or has other weights than an undisturbed one; see the rows"
        )


def _scenes(text: str) -> tuple[Scene, ...]:
    from weft.chaos.scenes import Scene

    known = [scene.value for scene in Scene]
    words = [word.strip() for word in text.split(",")]
    unknown = [word for word in words if word not in known]
    if unknown:
        raise InputError(
            f"--scenes: {', '.join(map(repr, unknown))} is unknown; there are {', '.join(known)}"
        )
    return tuple(Scene(word) for word in words)


def _fleet_text(model: str, data: str, fleet: Path | None, strategy: str, batch: int | None) -> str:
    """The user's fleet, or a small one that fits the strategy and the size of the network."""
    from weft.fleet.parse import dump_fleet

    if fleet is not None:
        from weft.fleet.fleet import Fleet

        return dump_fleet(Fleet.load(fleet))
    from weft.api import load_model
    from weft.chaos.fleets import fleet_for
    from weft.data.user_data import class_count, named_data, sample_shape
    from weft.graph.capture.module import capture
    from weft.planning.task import BATCH
    from weft.plans import registry

    samples = named_data(data)
    count = None if ":" in model else class_count(samples)
    module, example = load_model(model, sample_shape(samples), count)
    flops = sum(layer.forward_flops for layer in capture(module, example).layers)
    return dump_fleet(fleet_for(registry.get(strategy), 3 * flops * (batch or BATCH["train"])))


def _tell(report: Report) -> None:
    """A line for each run, while the others go on."""
    row = report.rows[-1]
    count = sum(fault.kind.value != "restart" for fault in row.faults)
    say(
        f"run {row.run}: {row.outcome.value}, {count} faults in {row.seconds:.1f} s {row.error}".rstrip()
    )
