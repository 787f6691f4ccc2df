"""Commands that run nothing on a fleet: plan, compare, simulate.

Each command imports what it needs when it runs, so that `weft --help` is quick.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from weft.commands import values
from weft.commands.app import app, debugging, say, show, show_json, writing
from weft.commands.options import (
    Batch,
    Classes,
    FleetFile,
    InputShape,
    Json,
    Mode,
    Model,
    Objective,
    ObjectiveName,
    ProfileFile,
    Settings,
    Strategy,
)
from weft.errors import InputError, WeftError

Limit = Annotated[
    float,
    typer.Option(
        help="Seconds of computing that one strategy may take to plan before it is left out."
    ),
]


@app.command()
def plan(
    model: Model,
    fleet: FleetFile,
    strategy: Strategy,
    batch: Batch = None,
    mode: Mode = None,
    profile: ProfileFile = None,
    settings: Settings = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Plan file.")] = None,
    draw: Annotated[Path | None, typer.Option(help="Picture: PNG, SVG or PDF.")] = None,
    input_shape: InputShape = None,
    classes: Classes = None,
    objective: Objective = ObjectiveName.time,
    limit: Limit = 300.0,
    json: Json = False,
) -> None:
    """Decide which device computes what, and predict the cost.

    \b
    Example:  weft plan lenet5 --fleet fleet.toml --strategy chain --batch 64 -o plan.json
    """
    _check_limit(limit)
    from weft.fleet.fleet import Fleet
    from weft.planning.decide import decide
    from weft.planning.limit import TooLong, time_limit
    from weft.planning.task import ask
    from weft.plans import registry
    from weft.plans.derive import load_profile
    from weft.report.documents import plan_document
    from weft.report.tables import plan_table

    chosen = registry.get(strategy)
    task = ask(
        model,
        Fleet.load(fleet),
        batch=batch,
        mode=mode.value if mode else chosen.modes[0],
        profile=load_profile(profile) if profile else None,
        options=values.settings(settings or []),
        input_shape=values.shape(input_shape),
        classes=classes,
        objective=objective.value,
    )
    try:
        with planning_bar(quiet=json) as on_begin, time_limit(limit):
            on_begin(strategy, 0, 1)
            decided = decide(strategy, task)
    except TooLong as error:
        raise WeftError(f"{strategy}: {error}; --limit gives it more time") from None
    if output is not None:
        with writing("plan file", output):
            decided.save(output)
        say(f"wrote {output}")
    if draw is not None:
        from weft.report.pictures import draw_plan  # matplotlib takes half a second

        draw_plan(decided, draw)
        say(f"wrote {draw}")
    if json:
        show_json(plan_document(decided))
    else:
        show(plan_table(decided))


@app.command()
def compare(
    model: Model,
    fleet: FleetFile,
    strategies: Annotated[
        str, typer.Option(metavar="A,B,C", help="Names or file.py:function; or all.")
    ] = "all",
    batch: Batch = None,
    mode: Mode = None,
    profile: ProfileFile = None,
    settings: Settings = None,
    input_shape: InputShape = None,
    classes: Classes = None,
    objective: Objective = ObjectiveName.time,
    limit: Limit = 60.0,
    json: Json = False,
) -> None:
    """Plan and price several strategies: one table, best first, and which one to take.

    Speedups are over the best single machine. The advice names the best plan that computes what one process
    computes, and says so when splitting does not pay; `--strategy auto` takes it. Strategies that are not
    possible on this fleet or for this network are named below the table, with the reason. --json has the
    full reasons.

    \b
    Example:  weft compare lenet5 --fleet fleet.toml --strategies chain,all-cloud
    """
    _check_limit(limit)
    from weft.fleet.fleet import Fleet
    from weft.planning.advise import advise, why_none
    from weft.planning.compare import compare as compare_strategies
    from weft.planning.task import ask
    from weft.plans import registry
    from weft.plans.derive import load_profile
    from weft.report.documents import compare_document
    from weft.report.tables import compare_table

    names = values.names(strategies)
    for name in names or []:
        registry.get(name)  # refuse a wrong name before the network is read
    task = ask(
        model,
        Fleet.load(fleet),
        batch=batch,
        mode=mode.value if mode else "train",
        profile=load_profile(profile) if profile else None,
        options=values.settings(settings or []),
        input_shape=values.shape(input_shape),
        classes=classes,
        objective=objective.value,
    )
    with planning_bar(quiet=json) as on_begin:
        rows = compare_strategies(
            task,
            names,
            limit_s=limit,
            on_begin=on_begin,
            on_error=_traceback if debugging.wanted else _nothing,
        )
        best = advise(rows, task)
    why = why_none(rows, task)
    if json:
        show_json(compare_document(task.profile.model, task.batch, rows, best, why))
    else:
        unit = "a training step" if task.mode == "train" else "an answer"
        unit += "" if task.objective == "time" else f", by {task.objective}"
        title = f"{task.profile.model}, batch {task.batch}: {unit}"
        show(compare_table(rows, title, best, why))
    if not any(row.valid for row in rows):
        raise WeftError(
            "no strategy is possible on this fleet; `weft plan -s NAME` says why in full"
        )


def _check_limit(limit: float) -> None:
    if not limit > 0:
        raise InputError(f"--limit {limit} is not allowed; it must be above 0 seconds")


def _traceback(name: str, error: Exception) -> None:
    say(f"{name}:")
    say("".join(traceback.format_exception(error)).rstrip())


def _nothing(name: str, error: Exception) -> None:
    pass


@contextlib.contextmanager
def planning_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr with the strategy that thinks now. It is gone when all have."""
    console = Console(stderr=True, quiet=quiet or not sys.stderr.isatty())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("planning", total=None)

        def on_begin(name: str, done: int, count: int) -> None:
            bar.update(task, description=f"planning {name}", completed=done, total=count)

        yield on_begin


@app.command()
def simulate(
    plan: Annotated[Path, typer.Argument(help="A plan file, from `weft plan -o`.")],
    steps: Annotated[int, typer.Option(help="Minibatches to simulate.")] = 6,
    trace: Annotated[
        Path | None, typer.Option(help="Chrome trace (JSON) for ui.perfetto.dev.")
    ] = None,
    gantt: Annotated[Path | None, typer.Option(help="Picture: PNG, SVG or PDF.")] = None,
    json: Json = False,
) -> None:
    """Simulate a plan: what each device would do when.

    \b
    Example:  weft simulate plan.json --gantt gantt.png --trace trace.json
    """
    from weft.planning.decide import simulate_plan
    from weft.report.documents import timeline_document
    from weft.report.pictures import draw_gantt
    from weft.report.tables import timeline_table
    from weft.report.trace import save_trace

    loaded, timeline = simulate_plan(plan, steps)
    if trace is not None:
        save_trace(trace, {"predicted": timeline})
        say(f"wrote {trace}")
    if gantt is not None:
        draw_gantt(timeline, gantt)
        say(f"wrote {gantt}")
    if json:
        show_json(timeline_document(loaded, timeline))
    else:
        show(timeline_table(timeline))
