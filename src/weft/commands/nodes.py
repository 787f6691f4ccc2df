"""Commands about machines: node (the agent), fleet (the nodes that are there)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from weft.commands.app import app, say, show, show_json, writing
from weft.commands.options import Group, Join, Json, ZenohConfig
from weft.errors import InputError


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
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what the node does.")
    ] = False,
) -> None:
    """Run the agent on a device: it waits for work until it is stopped.

    \b
    Example:  weft node --name pi --invite weft1:...
              weft node --name pi                       (every later time)
    """
    from weft.fleet.tables import NAME

    if not NAME.fullmatch(name):
        raise InputError(
            f"--name {name!r} is not allowed; use letters, digits, - and _ (64 at most)"
        )
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s"
    )
    from weft.runtime.node.node import Node
    from weft.runtime.node.serve import serve_node
    from weft.runtime.wire.reach import reach

    def ready(_: Node) -> None:
        where = ", ".join(endpoints.listen) or "a free port of this machine"
        say(f"{name} is ready on {where}; Ctrl-C stops it")

    if open_to_all and (invite or config):
        raise InputError("--open means without keys: leave --invite and --zenoh-config out")
    if invite is not None:
        from weft.runtime.keys.invite import read_invite, take_invite

        group = take_invite(read_invite(invite), name).fleet
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
    serve_node(name, endpoints, group=group, tether=tether, scratch=scratch, ready=ready)


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
    from weft.runtime.run.discover import discover

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
