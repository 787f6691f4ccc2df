"""The matrix: every strategy x every feature. What the record does not refuse is really run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from proofs.book import Book
from proofs.case import ROOT, Case, digest_of, source_digest
from weft.planning.features import UNTESTED, matrix
from weft.plans import registry
from weft.plans.protocols import Feature
from weft.version import __version__

PROVED = ROOT / "src" / "weft" / "planning" / "features.json"
PARTS = ("cells", "served", "subjects")
LIMIT_S = 150.0


def cases() -> list[Case]:
    here = Path(__file__).parent
    digest = digest_of(source_digest(), files=[here / f"{part}.py" for part in PARTS])
    return [
        Case("matrix", f"{row.strategy}: {feature}", partial(cell, row.strategy, feature), LIMIT_S, digest,
             promised=says != UNTESTED)
        for row in matrix().rows
        for feature, says in row.cells.items()
    ]  # fmt: skip


def cell(name: str, feature: Feature) -> str:
    from proofs import cells  # imports torch, which listing the cases does without

    if feature in registry.get(name).refuses:
        return f"refused: {cells.refused(name, feature)}"
    return cells.prove(name, feature)


def record(book: Book) -> str:
    """Writes which cells a real run of this code has shown; `weft strategies --features` reads it."""
    proved: dict[str, dict[str, str]] = {}
    for case in cases():
        outcome = book.of(case)
        name, _, feature = case.name.partition(": ")
        if outcome is None or outcome.verdict != "passed" or feature in registry.get(name).refuses:
            continue
        proved.setdefault(name, {})[feature] = f"{__version__}: {outcome.says}"
    PROVED.write_text(json.dumps(proved, indent=1) + "\n")
    count = sum(len(row) for row in proved.values())
    return f"wrote {count} proved cells to {PROVED.relative_to(ROOT)}"
