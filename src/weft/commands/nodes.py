"""Commands about machines: node (the agent), fleet (the nodes that are there)."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.commands.app import app, say, show, show_json, writing
from weft.commands.options import Group, Join, Json, ZenohConfig
from weft.errors import InputError

if TYPE_CHECKING:  # imports torch
    from weft.graph.accelerator import Compute

MAX_THREADS = 1024


@app.command()
def node(
    name: Annotated[str, typer.Option(help="This device's name in the fleet file.")],
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="ENDPOINT", help="Such as 192.0.2.7:7447; any free port if none."),
    ] = None,
    join: Join = None,
    invite: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="The line of `weft keys invite`: once on every device."),
    ] = None,
    open_to_all: Annotated[
        bool,
        typer.Option("--open", help="No keys: anybody who can reach this device may use it."),
    ] = False,
    group: Group = "weft",
    config: ZenohConfig = None,
    gossip: Annotated[bool, typer.Option(help="Learn about further nodes from known ones.")] = True,
    tether: Annotated[
        bool, typer.Option("--tether", help="End when standard input closes.", hidden=True)
    ] = False,
    scratch: Annotated[
        Path | None,
        typer.Option(help="Folder that the nodes of an emulated fleet share.", hidden=True),
    ] = None,
    shared_memory: Annotated[
        bool, typer.Option(help="Faster between processes of one machine; not for emulation.")
    ] = False,
    metrics: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Numbers for Prometheus at /metrics: on 127.0.0.1, or by TLS if this device has keys.",
        ),
    ] = None,
    threads: Annotated[
        str, typer.Option(metavar="N|auto", help="To compute with; auto: one for each core.")
    ] = "1",
    compute: Annotated[
        str,
        typer.Option(metavar="DEVICE", help="cpu, or an accelerator: cuda:0, mps, xpu (untested)."),
    ] = "cpu",
    print_unit: Annotated[
        bool, typer.Option("--print-unit", help="Print a systemd unit for this node, and end.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what the node does.")
    ] = False,
    json: Json = False,
) -> None:
    """Run the agent on a device: it waits for work until it is stopped.

    With --json it prints its name, its fleet and where it is reached, once it is ready.

    \b
    Example:  weft node --name pi --invite weft1:...
              weft node --name pi                       (every later time)
              weft node --name pi --print-unit
    """
    from weft.fleet.tables import NAME

    if not NAME.fullmatch(name):
        raise InputError(
            f"--name {name!r} is not allowed; use letters, digits, - and _ (64 at most)"
        )
    setting = _compute(threads, compute)
    if print_unit:
        options = {"--name": [name], "--listen": listen, "--join": join, "--group": [group],
                   "--zenoh-config": [config] if config else None,
                   "--metrics": [str(metrics)] if metrics is not None else None,
                   "--threads": [threads] if threads != "1" else None,
                   "--compute": [compute] if compute != "cpu" else None}  # fmt: skip
        arguments = [word for key, each in options.items() for v in each or () for word in (key, v)]
        arguments += ["--open"] if open_to_all else []
        _print_unit(name, arguments, invite)
        return
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s"
    )
    from weft.runtime.node.node import Node
    from weft.runtime.node.serve import serve_node
    from weft.runtime.wire.reach import reach, told_address

    def ready(_: Node) -> None:
        address = told_address(endpoints.listen[0]) if endpoints.listen else None
        if json:
            show_json(
                {"name": name, "group": group, "listen": list(endpoints.listen), "join": address}
            )
            sys.stdout.flush()  # whoever reads a pipe need not wait until the node ends
        where = ", ".join(endpoints.listen) or "what its Zenoh configuration says"
        say(f"{name} is ready on {where}; Ctrl-C stops it")
        if address:
            say(f"others reach it with --join {address} --group {group}")

    if open_to_all and (invite or config):
        raise InputError("--open means without keys: leave --invite and --zenoh-config out")
    if invite is not None:
        from weft.runtime.keys.invite import read_invite, take_invite

        group = take_invite(read_invite(invite), name).fleet
        _go_on_without(invite, group)
    endpoints = reach(
        group,
        name=name,
        join=join or (),
        listen=listen or (),
        config=config,
        open_to_all=open_to_all,
        gossip=gossip,
        shared_memory=shared_memory,
    )
    if open_to_all:
        say(f"warning: {name} is open: anybody who can reach this device may use it")
    serve_node(
        name, endpoints, group=group, tether=tether, scratch=scratch, ready=ready,
        findable=not tether, metrics_port=metrics, compute=setting,
        told=lambda address: say(f"its numbers for Prometheus: {address}"),
    )  # fmt: skip


def _go_on_without(invite: str, group: str) -> None:
    """Every user of a machine can read the words that a process was started with, for as long as it lives,
    and the invitation holds a key. So the same process begins again without it."""
    words = [word for word in sys.orig_argv if word != f"--invite={invite}"]
    if invite in words:
        place = words.index(invite)
        del words[place - 1 : place + 1]  # and the option's name before it
    if len(words) == len(sys.orig_argv) or os.name != "posix":
        return  # it was called from Python
    os.execv(sys.executable, [*words, "--group", group])


def _compute(threads: str, device: str) -> Compute:
    """What the node computes with."""
    from weft.graph.accelerator import Compute, accelerator
    from weft.runtime.node.probing.machine import cores

    most = cores()
    if threads != "auto" and not (threads.isdigit() and 1 <= int(threads) <= MAX_THREADS):
        raise InputError(
            f"--threads {threads!r} is not allowed; give a number from 1 to {MAX_THREADS}, or auto "
            f"({most} here)"
        )
    border = accelerator(device)
    if border is not None and threads != "1":
        raise InputError(f"--threads is for the processor; leave it out with --compute {device}")
    return Compute(most if threads == "auto" else int(threads), border)


def _print_unit(name: str, arguments: list[str], invite: str | None) -> None:
    if invite is not None:
        raise InputError(
            "--invite holds a key, and a unit can be read by all: start the node once with --invite, then "
            "print the unit without it"
        )
    from weft.commands.unit import this_user, unit
    from weft.runtime.keys.folder import config_home

    print(unit(name, arguments, this_user(), str(config_home())), end="")


@app.command()
def fleet(
    join: Join = None,
    probe: Annotated[bool, typer.Option("--probe", help="Measure compute and links.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Fleet file.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to look for nodes.")] = 2.0,
    group: Group = "weft",
    config: ZenohConfig = None,
    json: Json = False,
) -> None:
    """List the nodes that are there; with --probe also how fast they and their links are.

    \b
    Example:  weft fleet --join 192.0.2.7:7447 --probe -o fleet.toml
    """
    if wait <= 0:
        raise InputError(f"--wait {wait} is not allowed; it must be above 0 seconds")
    from weft.fleet.parse import dump_fleet
    from weft.report.tables import list_table
    from weft.runtime.run.measuring.discover import discover

    discovered = discover(tuple(join or ()), group=group, wait=wait, probe=probe, config=config)
    if output is not None:
        with writing("fleet file", output):
            output.write_text(dump_fleet(discovered.fleet))
        say(f"wrote {output}")
    if json:
        show_json({"devices": discovered.devices, "links": discovered.links})
        return
    columns = ("device", "cores", "memory", "GFLOPS", "busy")
    show(list_table(columns, [d.cells() for d in discovered.devices]))
    if discovered.links:
        show(
            list_table(
                ("from", "to", "Mbps", "latency"), [link.cells() for link in discovered.links]
            )
        )
