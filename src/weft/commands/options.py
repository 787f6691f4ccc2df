"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class ModeName(str, Enum):
    """What a plan is for, as `--mode` takes it."""

    train = "train"
    infer = "infer"


class LogName(str, Enum):
    """Further logs of a run, as `--log` takes them."""

    csv = "csv"
    tensorboard = "tensorboard"


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name from `weft models`, or file.py:factory.")
]
FleetFile = Annotated[Path, typer.Option("--fleet", "-f", help="The fleet file (TOML).")]
Batch = Annotated[
    int | None,
    typer.Option("--batch", "-b", help="Samples in a minibatch: 32 if not given, 1 to infer."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", "-p", help="Measured times (JSON); MODEL is then only a label."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A strategy's option; see `weft strategies`."),
]
InputShape = Annotated[
    str | None,
    typer.Option("--input-shape", metavar="CxHxW", help="One sample's shape, such as 1x28x28."),
]
Mode = Annotated[ModeName | None, typer.Option(help="What the plan is for.")]
Classes = Annotated[int | None, typer.Option(help="Classes of a zoo network.")]
Strategy = Annotated[
    str,
    typer.Option("--strategy", "-s", help="A name from `weft strategies`, or file.py:function."),
]
# For commands that also take a plan file, which has its own fleet and strategy.
SomeFleet = Annotated[Path | None, typer.Option("--fleet", "-f", help="The fleet file (TOML).")]
SomeStrategy = Annotated[
    str | None,
    typer.Option("--strategy", "-s", help="A name from `weft strategies`, or file.py:function."),
]
PlanFile = Annotated[
    Path | None,
    typer.Option("--plan", help="A plan file to run as it is; it has its own fleet and strategy."),
]
Local = Annotated[
    bool, typer.Option("--local", help="Emulate the fleet on this machine: one process per device.")
]
Namespaces = Annotated[
    bool, typer.Option("--netns", help="Emulate with network namespaces (Linux, root).")
]
Join = Annotated[
    list[str] | None,
    typer.Option("--join", metavar="ENDPOINT", help="A node to join, such as 192.0.2.7:7447."),
]
Group = Annotated[
    str, typer.Option(help="The fleet's name: fleets that share a network are separate.")
]
# The training loop.
Optimizer = Annotated[
    str, typer.Option(help="sgd, momentum, adam, adamw, or another class of torch.optim.")
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Learning rate; by default 0.05, 0.001 for adam, else that of torch.optim."),
]
OptimizerSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set-optimizer",
        metavar="KEY=VALUE",
        help="An argument of the optimizer, such as weight_decay=0.01 or betas=0.9,0.95.",
    ),
]
NoDecay = Annotated[bool, typer.Option("--no-decay", help="No weight decay of norms and biases.")]
Schedule = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How the learning rate changes: cosine, linear, step, onecycle or another of torch.optim.",
    ),
]
ScheduleSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set-schedule",
        metavar="KEY=VALUE",
        help="An argument of the schedule, such as step_size=30.",
    ),
]
Warmup = Annotated[
    int, typer.Option(help="Minibatches over which the learning rate rises at first.")
]
ClipValue = Annotated[
    float | None, typer.Option(metavar="X", help="No number of a gradient is larger than X.")
]
ClipNorm = Annotated[
    float | None,
    typer.Option(metavar="X", help="The norm of all gradients together is at most X."),
]
Accumulate = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Add up the gradients of N pieces of a minibatch: its micro-batches."
    ),
]
Average = Annotated[
    float | None,
    typer.Option("--ema", metavar="D", help="Keep running means of the weights, such as 0.999."),
]


class PrecisionName(str, Enum):
    """In which numbers products are computed, as `--precision` takes it."""

    float32 = "float32"
    bf16 = "bf16"


Precision = Annotated[
    PrecisionName,
    typer.Option(
        help="bf16: products in bfloat16 and weights in float32, on processors that have it."
    ),
]
EvaluateEvery = Annotated[
    int | None,
    typer.Option(metavar="N", help="Evaluate on the test samples every N minibatches."),
]
KeepBest = Annotated[
    str | None,
    typer.Option(
        metavar="METRIC", help="Keep the weights with the best loss or accuracy (best.safetensors)."
    ),
]
StopAfter = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="End after N evaluations in a row that are not better (by --keep-best, else by the loss).",
    ),
]
Logs = Annotated[
    list[LogName] | None,
    typer.Option("--log", help="Also write log.csv, or files for TensorBoard, to --out."),
]
Otel = Annotated[
    bool,
    typer.Option(
        "--otel",
        help="At the end, send the run's spans by OpenTelemetry: to OTEL_EXPORTER_OTLP_ENDPOINT.",
    ),
]
LabelSmoothing = Annotated[
    float, typer.Option(metavar="X", help="Label smoothing of the cross-entropy.")
]
Patience = Annotated[
    float,
    typer.Option(
        help="Seconds without a heartbeat after which a device is left out until it is heard again. "
        "Raise it for slow links and busy machines."
    ),
]
Deadline = Annotated[
    float, typer.Option(help="Seconds a device waits for another before the run ends.")
]
ZenohConfig = Annotated[
    str | None, typer.Option("--zenoh-config", help="Zenoh configuration: TLS, access control.")
]


class ObjectiveName(str, Enum):
    """What a plan is chosen for, as `--objective` takes it."""

    time = "time"
    energy = "energy"
    money = "money"
    memory = "memory"


Objective = Annotated[
    ObjectiveName,
    typer.Option(
        help="What a plan is chosen for. energy and money need watts and prices in the fleet file."
    ),
]
Measure = Annotated[
    bool,
    typer.Option(help="Real nodes measure the network's layers where their times are not known."),
]
