"""Strategies in tables and documents: what each is and can do."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from weft.planning.features import UNTESTED, Matrix
from weft.plans.protocols import ONE_NETWORK
from weft.plans.strategy import Strategy
from weft.report.documents import Document
from weft.report.tables import new_table

REFUSED = "refused: "


def abilities(record: Strategy) -> list[str]:
    """What else a strategy can do, and what it needs, in a few words."""
    words = []
    if record.workload != ONE_NETWORK:
        words.append(record.workload)
    if record.exact and "train" in record.modes:
        words.append("exact")
    if record.online is not None:
        words.append("decides while it runs")
    if "train" in record.modes:
        words.append(record.recovery)
    if record.needs:
        words.append(f"needs {' and '.join(sorted(record.needs))}")
    return words


def strategy_document(record: Strategy) -> Document:
    """One strategy of `weft strategies --json`."""
    return {
        "name": record.name,
        "summary": record.summary,
        "modes": record.modes,
        "options": dict(record.options),
        "replan": record.replan,
        "online": record.online is not None,
        "workload": record.workload,
        "recovery": record.recovery,
        "needs": sorted(record.needs),
        "exact": record.exact,
        "refuses": dict(record.refuses),
    }


def features_table(matrix: Matrix) -> RenderableType:
    """Strategies against features. The reasons of refusals are numbered and listed below the table."""
    table = new_table()
    table.add_column("strategy", no_wrap=True)
    for feature in matrix.features:
        table.add_column(feature, justify="center")
    reasons: dict[str, int] = {}
    for row in matrix.rows:
        cells = []
        for feature in matrix.features:
            cell = row.cells[feature]
            if cell.startswith(REFUSED):
                number = reasons.setdefault(cell.removeprefix(REFUSED), len(reasons) + 1)
                cell = f"no ({number})"
            cells.append("?" if cell == UNTESTED else cell)
        table.add_row(*map(escape, (row.strategy, *cells)))
    lines = ["? untested: not refused, and no recorded run has shown it"]
    lines += [f"({number}) {reason}" for reason, number in reasons.items()]
    return Group(table, Text("\n".join(lines), style="dim"))
