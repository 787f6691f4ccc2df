"""`weft reproduce hiertrain`: a paper's claims beside our results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from weft.commands.app import app, say, show, show_json
from weft.commands.options import Json

if TYPE_CHECKING:
    from weft.papers.registry import Tell

OUT = Path("runs/reproduce")


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER|all", help="Such as hiertrain.")],
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute: no real runs.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for figures and tables.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Show a paper's claims, tables and figures beside ours, and why they differ.

    Files go to runs/reproduce/PAPER, if --out says nothing else. A claim that does not come out is
    a row like any other: the command has then still done its work (exit code 0). A row is *fitted* where
    a setting was chosen so that it holds; it is not counted as reproduced. The last line counts all three.

    \b
    Example:  weft reproduce hiertrain --quick
    """
    from weft.papers import NAMES
    from weft.papers.claims import joined
    from weft.papers.registry import get as get_paper
    from weft.papers.registry import reproduce as run_paper
    from weft.papers.tables import document, ending, reproduction_table

    names = list(NAMES) if paper == "all" else [get_paper(paper).name]
    reports = []
    for name in names:
        folder = OUT / name if out is None else out / name if paper == "all" else out
        with progress_bar(name, quiet=json) as tell:
            reports.append(run_paper(name, folder, quick=quick, tell=tell))
        say(f"wrote {len(reports[-1].files)} files to {folder}")
    if json:
        whole = joined(reports) if paper == "all" else reports[0]
        show_json(document(whole))
        return
    for one in reports:
        show(reproduction_table(one))
    if paper == "all":
        show(ending(joined(reports)))


@contextmanager
def progress_bar(name: str, quiet: bool) -> Iterator[Tell]:
    """A bar on stderr that says what is being done."""
    with Progress(
        TextColumn(name), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=Console(stderr=True, quiet=quiet),
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=1.0)

        def tell(what: str, share: float) -> None:
            bar.update(task, completed=share, description=what)

        yield tell
