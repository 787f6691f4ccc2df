"""Commands that list: models, strategies, profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.commands import values
from weft.commands.app import app, say, show, show_json, writing
from weft.commands.options import (
    Classes,
    Group,
    InputShape,
    Join,
    Json,
    Mode,
    Model,
    ZenohConfig,
)
from weft.errors import InputError


@app.command()
def models(json: Json = False) -> None:
    """List the networks that Weft knows by name.

    \b
    Example:  weft models
    """
    from weft import zoo
    from weft.report.tables import list_table

    networks = [zoo.get(name) for name in zoo.names()]
    if json:
        rows = [
            {
                "name": model.name,
                "summary": model.summary,
                "input_shape": model.input_shape,
                "classes": model.classes,
            }
            for model in networks
        ]
        show_json({"models": rows})
        return
    shapes = ["x".join(map(str, model.input_shape)) for model in networks]
    rows_text = [
        (m.name, s, str(m.classes), m.summary) for m, s in zip(networks, shapes, strict=True)
    ]
    show(list_table(("model", "input", "classes", "what it is"), rows_text))


@app.command()
def strategies(
    features: Annotated[
        bool, typer.Option("--features", help="The features that work with each strategy.")
    ] = False,
    json: Json = False,
) -> None:
    """List the strategies, and the options that --set gives to each.

    With --features: which features work with each strategy, which are refused and why, and which no recorded
    run has shown yet ("untested").

    \b
    Example:  weft strategies
              weft strategies --features
    """
    from weft.planning.features import matrix
    from weft.plans import registry
    from weft.report.strategies import abilities, features_table, strategy_document
    from weft.report.tables import list_table

    if features:
        table = matrix()
        show_json(table) if json else show(features_table(table))
        return
    records = [registry.get(name) for name in registry.names()]
    if json:
        show_json({"strategies": [strategy_document(record) for record in records]})
        return
    texts = [
        (s.name, ", ".join(s.modes), ", ".join(abilities(s)), ", ".join(s.options), s.summary)
        for s in records
    ]
    show(list_table(("strategy", "for", "abilities", "--set", "what it does"), texts))


@app.command()
def profile(
    model: Model,
    batch: Annotated[int, typer.Option("--batch", "-b", help="Samples to time with.")] = 32,
    device: Annotated[str, typer.Option(help="The device's name in the file.")] = "here",
    gflops: Annotated[
        float | None, typer.Option(help="Derive the times from this speed; measure nothing.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Profile file.")] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Keep the other devices that the file has.")
    ] = False,
    input_shape: InputShape = None,
    classes: Classes = None,
    join: Join = None,
    mode: Mode = None,
    wait: Annotated[float, typer.Option(help="Seconds to look for nodes, with --join.")] = 2.0,
    group: Group = "weft",
    config: ZenohConfig = None,
    json: Json = False,
) -> None:
    """Show what each layer costs: measured on this machine, on real nodes (--join), or derived from --gflops.

    With --join every node that is there times the layers itself, and the links between them are measured both
    ways under load. -o then names a fleet file. The profile is written beside it, with the ending .json.

    \b
    Example:  weft profile lenet5 --device pi -o lenet5.json
              weft profile lenet5 --device cloud --gflops 100 -o lenet5.json --add
              weft profile lenet5 --join tcp/192.0.2.7:7447 -o fleet.toml
    """
    if join:
        if add or gflops is not None or device != "here":
            raise InputError("--join measures all nodes: leave --device, --gflops and --add out")
        _profile_nodes(
            model, tuple(join), batch, mode.value if mode else "train", output, wait, group, config,
            values.shape(input_shape), classes, json,
        )  # fmt: skip
        return
    if mode is not None:
        raise InputError("--mode goes with --join: here both modes are measured")
    from weft.planning.profiles import joined, profile_model
    from weft.plans.derive import load_profile, save_profile
    from weft.report.tables import profile_table

    if add and output is None:
        raise InputError("--add needs the file to add to: give it with -o")
    known = load_profile(output) if add and output is not None and output.exists() else None
    costs = profile_model(
        model,
        device=device,
        batch=batch,
        gflops=gflops,
        input_shape=values.shape(input_shape),
        classes=classes,
    )
    if known is not None:
        costs = joined(known, costs)
    if output is not None:
        with writing("profile file", output):
            save_profile(costs, output)
        say(f"wrote {output}")
    if json:
        show_json(costs)
    else:
        show(profile_table(costs))


def _profile_nodes(
    model: str,
    join: tuple[str, ...],
    batch: int,
    mode: str,
    output: Path | None,
    wait: float,
    group: str,
    config: str | None,
    input_shape: tuple[int, ...] | None,
    classes: int | None,
    json: bool,
) -> None:
    """Measures a network on all nodes that are there; writes the fleet file and the profile."""
    if wait <= 0:
        raise InputError(f"--wait {wait} is not allowed; it must be above 0 seconds")
    if output is not None and output.suffix == ".json":
        raise InputError(f"-o {output}: with --join it names the fleet file, such as fleet.toml")
    from weft.fleet.parse import dump_fleet
    from weft.planning.task import named_graph
    from weft.plans.derive import save_profile
    from weft.report.tables import list_table, profile_table
    from weft.runtime.run.launch import Place
    from weft.runtime.run.measuring.known import measured_fleet

    graph = named_graph(model, input_shape, classes)
    measured = measured_fleet(
        graph, Place(join=join, group=group, config=config), batch=batch,
        training=mode == "train", wait=wait, say=say,
    )  # fmt: skip
    if output is not None:
        beside = output.with_suffix(".json")
        with writing("fleet file", output):
            output.write_text(dump_fleet(measured.fleet))
        with writing("profile file", beside):
            save_profile(measured.profile, beside)
        say(f"wrote {output} and {beside}")
    if json:
        show_json({"fleet": measured.fleet, "profile": measured.profile})
        return
    show(profile_table(measured.profile))
    rows = [
        (name, f"{t.message_s * 1e3:.3f} ms", f"{t.byte_s * 1e9:.2f} ms/MB", f"{t.share:.2f}",
         t.host[:8], f"{t.memory_bytes / 2**20:.0f} MB")
        for name, t in measured.profile.devices.items()
    ]  # fmt: skip
    show(list_table(("device", "a message", "its bytes", "core", "host", "memory"), rows))
    links = [
        (" - ".join(k.between), f"{k.up_mbps:.1f}", f"{k.down_mbps:.1f}", f"{k.latency_ms:.3f} ms")
        for k in measured.fleet.link
    ]
    if links:
        show(list_table(("link", "Mbps there", "back", "latency"), links))
