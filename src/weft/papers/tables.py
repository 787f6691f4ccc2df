"""Claims for people: a table for the terminal, and the same in Markdown for a file.

console.print(reproduction_table(reproduce("coopai", out)))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from weft.errors import InputError
from weft.papers.claims import WITHIN, Claim, Reproduction, Said, Table, Verdict
from weft.report.tables import framed, new_table
from weft.report.words import digits, seconds

STYLES: dict[Verdict, str] = {
    "yes": "green", "no": "yellow", "fitted": "italic cyan", "reached": "dim green", "missed": "dim yellow",
}  # fmt: skip
COLUMNS = ("claim", "what", "paper", "ours", "holds")


def said(value: Said, unit: str) -> str:
    """`2.3x`, `0.52 s`, `31.49 %`, or the words themselves."""
    if isinstance(value, str):
        return value
    if unit == "s":
        return seconds(value)
    if unit == "%":
        return f"{round(value, 2):g} %"
    # A paper's numbers are printed with the paper's digits, ours with three digits.
    text = f"{value:g}" if len(f"{value:g}") <= 4 else digits(value)
    return f"{text}{unit}" if unit == "x" else f"{text} {unit}".rstrip()


def cells(claim: Claim) -> tuple[str, ...]:
    """A claim as the cells of a table."""
    return (
        claim.id,
        claim.what,
        said(claim.paper, claim.unit),
        said(claim.ours, claim.unit),
        claim.verdict,
    )


def reproduction_table(reproduction: Reproduction) -> RenderableType:
    """All claims, the reason of each, the paper's tables, and the three counts."""
    table = new_table()
    for name in COLUMNS:
        table.add_column(name, overflow="fold", no_wrap=name in ("claim", "holds"))
    for claim in reproduction.claims:
        style = STYLES[claim.verdict]
        *text, verdict = map(escape, cells(claim))
        table.add_row(*text, f"[{style}]{verdict}[/{style}]")
    parts: list[RenderableType] = [framed(headline(reproduction), table)]
    for note, ids in shared_notes(reproduction.claims).items():
        parts += [Text(", ".join(ids), style="bold"), Padding(Text(note), (0, 0, 0, 2))]
    parts += [Group(Text(""), plain_table(table)) for table in reproduction.tables]
    own = f"{own_words(reproduction)}\n" if own_words(reproduction) else ""
    return Group(*parts, Text(f"\n{own}{ending(reproduction)}", style="bold"))


def shared_notes(claims: Iterable[Claim]) -> dict[str, list[str]]:
    """Each note once, with the ids of its claims."""
    notes: dict[str, list[str]] = {}
    for claim in claims:
        if claim.note:
            notes.setdefault(claim.note, []).append(claim.id)
    return notes


def plain_table(table: Table) -> RenderableType:
    """A table for the terminal."""
    drawn = new_table()
    for index, name in enumerate(table.columns):
        drawn.add_column(name, justify="right" if index else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    return framed(table.title, drawn)


def headline(reproduction: Reproduction) -> str:
    """How many claims are reproduced, and by which rule."""
    return (
        f"{reproduction.paper}: {reproduction.reproduced} of {reproduction.printed} claims reproduced "
        f"(a printed number: within {WITHIN:.0%}; a fitted row does not count)"
    )


def ending(reproduction: Reproduction) -> str:
    """The last line: `hiertrain: 34 reproduced, 8 not reproduced, 4 fitted`."""
    return (
        f"{reproduction.paper}: {reproduction.reproduced} reproduced, "
        f"{reproduction.not_reproduced} not reproduced, {reproduction.fitted} fitted"
    )


def own_words(reproduction: Reproduction) -> str:
    """How many statements of ours are reached; empty if there is none."""
    reached, missed = reproduction.count("reached"), reproduction.count("missed")
    if not reached + missed:
        return ""
    return f"{reproduction.paper}: besides, statements of ours: {reached} reached, {missed} missed"


def document(reproduction: Reproduction) -> dict[str, object]:
    """What `--json` prints.

    There neither a fitted claim nor a statement of ours is `reproduced`; `holds` says whether it agrees.
    """
    claims = [
        {
            **msgspec.structs.asdict(claim),
            "reproduced": claim.verdict == "yes",
            "holds": claim.reproduced,
        }
        for claim in reproduction.claims
    ]
    counts = {
        "reproduced": reproduction.reproduced,
        "not_reproduced": reproduction.not_reproduced,
        "fitted": reproduction.fitted,
        "ours_reached": reproduction.count("reached"),
        "ours_missed": reproduction.count("missed"),
    }
    return {
        "paper": reproduction.paper,
        "claims": claims,
        "files": reproduction.files,
        "counts": counts,
    }


def claims_markdown(reproduction: Reproduction) -> str:
    """All claims as Markdown."""
    rows = []
    for claim in reproduction.claims:
        *text, verdict = cells(claim)
        rows.append((*text, f"*{verdict}*" if verdict == "fitted" else verdict, claim.note))
    table = markdown_rows((*COLUMNS, "note"), rows)
    own = f"{own_words(reproduction)}\n\n" if own_words(reproduction) else ""
    return f"# {headline(reproduction)}\n\n{table}\n{own}{ending(reproduction)}\n"


def table_markdown(table: Table) -> str:
    """A table as Markdown."""
    return f"# {table.title}\n\n{markdown_rows(table.columns, table.rows)}"


def markdown_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The rows of a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(
        f"| {' | '.join(t.replace('|', chr(92) + '|') for t in row)} |\n" for row in lines
    )


def write_texts(texts: Mapping[Path, str]) -> list[Path]:
    """Write texts to their files; InputError if a file cannot be written."""
    for path, text in texts.items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"table {path}: {error.strerror or error}") from None
    return list(texts)
