"""The papers by name, and how to reproduce one.

    reproduce("hiertrain", Path("runs/reproduce/hiertrain"), quick=True)

A paper is a folder with a function under `@paper` in its paper.py. `weft/papers/__init__.py` names them.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weft.errors import InputError
from weft.papers import NAMES
from weft.papers.claims import Reproduction

Tell = Callable[[str, float], None]  # what is done now, and which share of all work is done
Run = Callable[[Path, bool, Tell], Reproduction]  # folder for files, whether quick, progress


@dataclass(frozen=True)
class Paper:
    """A paper that can be reproduced."""

    name: str
    title: str
    run: Run


PAPERS: dict[str, Paper] = {}


def paper(name: str, title: str) -> Callable[[Run], Run]:
    """Register a function that reproduces a paper's evaluation."""

    def register(run: Run) -> Run:
        if name in PAPERS:
            raise ValueError(f"two papers are called {name!r}")
        PAPERS[name] = Paper(name, title, run)
        return run

    return register


def get(name: str) -> Paper:
    """The paper with this name; InputError with the nearest name if there is none."""
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        raise InputError(f"unknown paper {name!r}{hint} there are: {', '.join(NAMES)}, all")
    importlib.import_module(f"weft.papers.{name}.paper")  # registers itself
    return PAPERS[name]


def silent(what: str, share: float) -> None:
    """For callers that show no progress."""


def reproduce(name: str, out: Path, *, quick: bool = False, tell: Tell = silent) -> Reproduction:
    """The paper's claims beside ours. Tables and figures are written to `out`.

    InputError if the paper is unknown or the folder cannot be made.
    """
    chosen = get(name)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {out}: {error.strerror or error}") from None
    return chosen.run(out, quick, tell)
