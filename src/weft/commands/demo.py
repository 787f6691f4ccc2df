"""`weft demo`: the main job from beginning to end on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.commands.app import app, say, show, show_json, writing
from weft.commands.options import Json
from weft.commands.running import progress_bar
from weft.errors import InputError

# The same as examples/fleets/first.toml, which an installed package does not have.
FLEET = """\
# Three devices slow enough to be emulated on a laptop. Splitting pays here: `weft compare` says how much.

[[device]]
name = "pi"
tier = "device"
gflops = 0.5
data = true

[[device]]
name = "nuc"
tier = "edge"
gflops = 1.0

[[device]]
name = "cloud"
tier = "cloud"
gflops = 2.0

[[link]]
between = ["pi", "nuc"]
mbps = 50
latency_ms = 2

[[link]]
between = ["nuc", "cloud"]
mbps = 100
latency_ms = 5
"""
PERFETTO = "perfetto.json"  # trace.json in the folder of a run says how its fleet changes


@app.command()
def demo(
    steps: Annotated[int, typer.Option(help="Minibatches to train.")] = 60,
    out: Annotated[Path, typer.Option(help="Folder for pictures, weights, timeline.")] = Path(
        "runs/demo"
    ),
    json: Json = False,
) -> None:
    """Three emulated devices train LeNet-5 on real digits: compare, run, predicted beside measured.

    \b
    Example:  weft demo
    """
    if steps < 1:
        raise InputError(f"--steps {steps} is not allowed; it must be at least 1")
    with writing("--out", out):
        out.mkdir(parents=True, exist_ok=True)
    from weft.runtime.emulate.forked import warm

    warm()  # the process of the emulated devices imports torch at the same time as this one
    import torch
    from torch import nn

    from weft import zoo
    from weft.adapt.train import train
    from weft.data import load
    from weft.fleet.parse import parse_fleet
    from weft.graph.optimizers.optimizer import Optimizer
    from weft.planning.advise import advise
    from weft.planning.compare import compare
    from weft.planning.task import make_task
    from weft.program.lower.lower import lower
    from weft.report.pictures import draw_gantt, draw_plan
    from weft.report.results import train_document, train_table
    from weft.report.tables import compare_table, plan_table
    from weft.report.trace import save_trace
    from weft.runtime.run.feeds import source_of
    from weft.runtime.run.workload.one_network import prepare, profile_for
    from weft.simulate.simulate import simulate

    fleet, batch, rule = parse_fleet(FLEET, "the demo's fleet"), 64, Optimizer("momentum", 0.02)
    torch.manual_seed(0)
    load("mnist5k")
    model, loss = zoo.build("lenet5"), nn.CrossEntropyLoss()
    say("measuring LeNet-5 on this machine, to emulate a Pi, a NUC and a cloud box on it ...")
    trainee = prepare(
        model, source_of("mnist5k", batch, 0), loss, fleet, batch=batch, rule=rule, emulated=True,
        name="lenet5",
    )  # fmt: skip
    task = make_task(
        profile_for(trainee, fleet, None),
        fleet,
        batch=batch,
        graph=trainee.graph,
        optimizer=rule.name,
    )
    rows = compare(task)
    best = advise(rows, task)
    assert best is not None  # every device of this fleet can hold the network
    plan = best.plan
    if not json:
        title = f"lenet5, batch {batch}, one training step on pi, nuc and cloud"
        show(compare_table(rows, title, best))
        show(plan_table(plan))
    say(f"training with {best.strategy}, {steps} steps on three real processes ...")
    with progress_bar(steps, quiet=json) as on_progress:
        result = train(
            model, "mnist5k", loss, plan=plan, steps=steps, batch=batch, optimizer=rule, local=True,
            out=out, on_progress=on_progress, name="lenet5",
        )  # fmt: skip
    predicted = simulate(lower(result.plan), steps=6)
    draw_plan(result.plan, out / "plan.png")
    draw_gantt(predicted, out / "gantt.png", other=result.timeline)
    save_trace(out / PERFETTO, {"predicted": predicted, "measured": result.timeline})
    if json:
        show_json({**train_document(result), "files": ["plan.png", "gantt.png", PERFETTO]})
        return
    show(train_table(result))
    say(f"in {out}: plan.png and gantt.png, and {PERFETTO} for ui.perfetto.dev")
