"""Commands that watch runs: web, top. They read a run's folder and talk to nobody.

Each command imports what it needs when it runs, so that `weft --help` is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.commands.app import app, say, show_json
from weft.commands.options import Json
from weft.errors import InputError

Folder = Annotated[
    Path,
    typer.Argument(metavar="[DIR]", help="A run's folder (--out), or one with several runs in it."),
]


@app.command()
def web(
    folder: Folder = Path("runs"),
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any but a loopback address needs the token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8420,
    json: Json = False,
) -> None:
    """Show runs in the browser: those that go on, and those that have ended.

    The page shows the fleet, who holds what, predicted and measured time, curves and events. It can ask what
    the plan would be on another fleet. It reads DIR and talks to no device. It needs
    `pip install 'weft\\[web]'`.

    \b
    Example:  weft web runs
    """
    from weft.web.folder import open_folder, runs_in

    open_folder(folder)
    try:
        from weft.web.server import Serving
    except ImportError as error:
        raise InputError(
            f"weft web needs packages that are missing ({error.name}): pip install 'weft[web]'. "
            "weft top shows the same in a terminal"
        ) from None
    serving = Serving(folder, host, port)
    if json:
        show_json({"url": serving.url, "runs": list(runs_in(folder))})
    say(f"the page is at {serving.url} (Ctrl-C ends it)")
    serving.serve()


@app.command()
def top(
    folder: Folder = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="Print once and end.")] = False,
    json: Json = False,
) -> None:
    """Show runs in the terminal: the same as `weft web`, for people who work over ssh.

    With --json it prints what it knows once, and ends.

    \b
    Example:  weft top runs/first
    """
    from weft.web.folder import RunFolder, open_folder, runs_in
    from weft.web.terminal import watch

    open_folder(folder)
    if json:
        runs = [RunFolder(name, path) for name, path in runs_in(folder).items()]
        for run in runs:
            run.read()
        show_json({"runs": [run.parts for run in runs]})
        return
    watch(folder, once)
