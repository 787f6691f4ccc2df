"""`weft reproduce hiertrain`: a paper's claims beside our results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from weft.commands.app import app, say, show, show_json, writing
from weft.commands.options import Json
from weft.errors import InputError

if TYPE_CHECKING:
    from weft.papers.claims import Reproduction
    from weft.papers.registry import Tell

OUT = Path("runs/reproduce")


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER|all", help="Such as hiertrain.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="No real runs: under a minute for most papers.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for figures and tables.", show_default=False)
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Who computes `all`: local, dask://HOST:PORT or ray://HOST:PORT."
        ),
    ] = "local",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Papers at the same time, for `all` on this machine. By default one for each core with "
            "--quick, else 1: measured times would disturb each other.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show a paper's claims, tables and figures beside ours, and why they differ.

    Files go to runs/reproduce/PAPER unless you give --out. A claim that does not come out is
    a row like any other: the command has then still done its work (exit code 0). A row is *fitted* where
    a setting was chosen so that it holds; it is not counted as reproduced. The last line counts all three.
    What the paper does not say, such as a target of ours, is *reached* or *missed*, and not counted there.
    `all` also writes index.html, one page with everything in it. If it is stopped and started again, it goes
    on with the papers that are not done.

    \b
    Example:  weft reproduce hiertrain --quick
              weft reproduce all --quick --out runs/papers
    """
    from weft.papers.claims import joined
    from weft.papers.registry import get as get_paper
    from weft.papers.registry import reproduce as run_paper
    from weft.papers.tables import document, ending, reproduction_table
    from weft.papers.together import note_done

    folder = out or OUT
    if paper != "all":
        if engine != "local" or jobs is not None:
            raise InputError("--engine and --jobs are for `weft reproduce all`")
        folder = out or OUT / get_paper(paper).name
    with writing("folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    if paper == "all":
        reports = _all(folder, quick, engine, jobs, quiet=json)
    else:
        with progress_bar(paper, quiet=json) as tell:
            reports = [run_paper(paper, folder, quick=quick, tell=tell)]
        note_done(reports[0], folder, quick)
        say(f"wrote {len(reports[-1].files)} files to {folder}")
    if json:
        whole = joined(reports) if paper == "all" else reports[0]
        show_json(document(whole))
        return
    for one in reports:
        show(reproduction_table(one))
    if paper == "all":
        show(ending(joined(reports)))


def _all(out: Path, quick: bool, url: str, jobs: int | None, quiet: bool) -> list[Reproduction]:
    """All papers, in the order of their names, and the page of all."""
    from weft.papers import NAMES
    from weft.papers.engines import engine
    from weft.papers.page import write_page
    from weft.papers.together import reproduce_all, stop_children

    if jobs is None and url == "local":
        jobs = (os.cpu_count() or 1) if quick else 1
    reports = []
    with (
        engine(url, jobs, stop=stop_children) as compute,
        progress_bar("papers", quiet) as tell,
    ):
        tell(f"0 of {len(NAMES)} done", 0.0)
        for report, earlier in reproduce_all(NAMES, out, quick=quick, compute=compute):
            reports.append(report)
            tell(f"{len(reports)} of {len(NAMES)} done", len(reports) / len(NAMES))
            if earlier:
                say(f"{report.paper}: done before; remove {out / report.paper} to do it again")
    reports.sort(key=lambda report: NAMES.index(report.paper))
    path = write_page(reports, out / "index.html", quick=quick)
    say(f"wrote {path}")
    return reports


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
