"""`weft doctor`: checks this device, or a fleet, and says what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.commands.app import app, say, show, show_json
from weft.commands.options import Group, Join, Json, ZenohConfig
from weft.errors import InputError


@app.command()
def doctor(
    join: Join = None,
    name: Annotated[
        str | None, typer.Option(help="This device's name, to check its certificate alone.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ENDPOINT", help="A port that a node shall have, such as 192.0.2.7:7447."
        ),
    ] = None,
    fleet: Annotated[
        bool, typer.Option("--fleet", help="Check the nodes that are found without --join too.")
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to look for nodes.")] = 2.0,
    group: Group = "weft",
    config: ZenohConfig = None,
    json: Json = False,
) -> None:
    """Check this device, and with --join a fleet, and say what to do.

    It looks at versions, clocks, certificates, ports both ways, memory and the speed of torch. The exit
    code is 1 if something is wrong that would stop a run; a warning alone gives 0.

    \b
    Example:  weft doctor
              weft doctor --join 192.0.2.7:7447
    """
    if wait <= 0:
        raise InputError(f"--wait {wait} is not allowed; it must be above 0 seconds")
    from weft.doctor.device import examine_device
    from weft.doctor.findings import worst
    from weft.doctor.fleet import examine_fleet
    from weft.report.tables import list_table

    findings = list(examine_device(group, name, listen))
    if join or fleet:
        findings += examine_fleet(tuple(join or ()), group=group, wait_s=wait, config=config)
    state = worst(findings)
    if json:
        show_json({"state": state, "findings": findings})
    else:
        show(
            list_table(
                ("device", "check", "state", "what, and what to do"), [f.cells() for f in findings]
            )
        )
    if state == "fault":
        count = sum(finding.state == "fault" for finding in findings)
        say(f"{count} thing{'s' if count > 1 else ''} must be mended")
        raise typer.Exit(1)
