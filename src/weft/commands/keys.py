"""Commands about a fleet's keys: new, invite, list, revoke."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.commands.app import Commands, app, say, show, show_json
from weft.commands.options import Group, Join, Json
from weft.errors import InputError

keys_app = typer.Typer(
    name="keys",
    cls=Commands,
    help="Make and revoke the certificates of a fleet: with them everything is encrypted and closed.",
    no_args_is_help=True,
)
app.add_typer(keys_app)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The device's name in the fleet file.")]


@keys_app.command()
def new(group: Group = "weft", json: Json = False) -> None:
    """Make a fleet's authority and the owner's certificate on this machine.

    \b
    Example:  weft keys new
    """
    from weft.runtime.keys.owner import new_fleet

    folder = new_fleet(group)
    if json:
        show_json({"fleet": group, "folder": str(folder.path)})
        return
    say(f"the fleet {group} has keys now: {folder.path}")
    say("keep that folder: whoever has authority.key owns the fleet")
    say("next: weft keys invite NAME, for every device")


@keys_app.command()
def invite(
    name: Name,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where others reach this device, such as 192.0.2.7:7447; one device should have one.",
        ),
    ] = None,
    group: Group = "weft",
    json: Json = False,
) -> None:
    """Print the command that makes a device a member of the fleet. It holds a key: send it safely.

    \b
    Example:  weft keys invite pi
              weft keys invite nuc --listen 192.0.2.7:7447
    """
    from weft.runtime.keys.folder import Folder
    from weft.runtime.keys.owner import invite as new_member

    address = _address(listen) if listen else ""
    line = new_member(Folder(group), name, address).line()
    command = f"weft node --name {name} --invite {line}"
    say(f"type this on {name}; whoever sees it can be {name} until `weft keys revoke {name}`:")
    if json:
        show_json({"name": name, "invite": line, "command": command})
    else:
        print(command)


@keys_app.command("list")
def list_(group: Group = "weft", json: Json = False) -> None:
    """List the members of the fleet.

    \b
    Example:  weft keys list
    """
    from weft.report.tables import list_table
    from weft.runtime.keys.folder import Folder

    folder = Folder(group)
    if not folder.exists:
        raise InputError(f"there is no fleet {group} here; make one with `weft keys new`")
    members = folder.members().opened()
    rows = [
        {"name": d.name, "address": d.address, "state": "revoked" if d.revoked else "member"}
        for d in members.devices
    ]
    if json:
        show_json({"fleet": group, "number": members.number, "devices": rows})
        return
    cells = [(row["name"], row["address"] or "-", row["state"]) for row in rows]
    show(list_table(("device", "address", "state"), cells))


@keys_app.command()
def revoke(
    name: Name,
    join: Join = None,
    wait: Annotated[float, typer.Option(help="Seconds to look for the other devices.")] = 3.0,
    group: Group = "weft",
    json: Json = False,
) -> None:
    """Take a device off the fleet's list, on every device that is there now.

    \b
    Example:  weft keys revoke pi
    """
    if wait <= 0:
        raise InputError(f"--wait {wait} is not allowed; it must be above 0 seconds")
    from weft.runtime.keys.folder import Folder
    from weft.runtime.keys.owner import authority_of
    from weft.runtime.keys.owner import revoke as strike
    from weft.runtime.wire.reach import reach
    from weft.runtime.wire.revoking import hand_out

    folder = Folder(group)
    authority_of(folder)
    endpoints = reach(group, join=join or ())
    signed = strike(folder, name)
    members = signed.opened()
    outcome = hand_out(endpoints, signed, wait)
    absent = [d.name for d in members.present if d.name not in outcome]
    busy = sorted(device for device, is_busy in outcome.items() if is_busy)
    if json:
        show_json({"revoked": name, "told": sorted(outcome), "busy": busy, "absent": absent})
        return
    say(f"{name} is revoked; told: {', '.join(sorted(outcome)) or 'nobody'}")
    if busy:
        say(f"at work, and closed to {name} when their run is over: {', '.join(busy)}")
    if absent:
        say(
            f"not reached: {', '.join(absent)}. They take the new list when they next meet another "
            "device or a command of yours"
        )


def _address(text: str) -> str:
    """An address without its protocol: with keys it is always TLS."""
    address = text.removeprefix("tls/")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in address:
        raise InputError(f"--listen {text} is not allowed; it must look like 192.0.2.7:7447")
    return address
