"""A part of regenerate.py: the figures of the pages that name a benchmark, and whether its output has them.

A figure belongs to a benchmark if it is in a row of a table under a heading such as `goodput.py: ...`, in a
paragraph that names `benchmarks/goodput.py` or in a table after it, in a row *at a glance* that ends with
`goodput.py`, or in a row of the README that leads to such a heading or to a page that names it first.

It is looked for in those lines of the output that have the most words in common with its row. One that is
not there may have changed, be rounded in another way, or come from an earlier state that the page tells of: a
reader has to look.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNITS = {"ns": ("s", 1e-9), "µs": ("s", 1e-6), "us": ("s", 1e-6), "ms": ("s", 1e-3), "s": ("s", 1.0),
         "min": ("s", 60.0), "B": ("B", 1.0), "kB": ("B", 1e3), "MB": ("B", 1e6), "GB": ("B", 1e9),
         "%": ("%", 1.0), "x": ("x", 1.0), "million": ("", 1e6)}  # fmt: skip
FIGURE = re.compile(
    r"(?<![\w.\-/#:])([-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)"
    r"(?:\s?(%|(?:ns|µs|us|ms|s|min|B|kB|MB|GB|x|million)\b))?(?![\w-])"
)
RANGE = re.compile(r"\s*(?:to|and|/|,)\s*")  # between figures that share a unit
WORD = re.compile(r"[a-z][a-z0-9+-]+|\d+x\d+")
NAMED = re.compile(r"\bbenchmarks/\w+\.py\b|\bweft reproduce \w+")
LINK = re.compile(r"\]\([^)]*\)")


@dataclass(frozen=True)
class Place:
    """A row or a paragraph of a page."""

    page: str
    line: int
    text: str
    is_row: bool


Figure = tuple[float, str, str]  # the value in the unit's base, the base, as it is written


def figures(text: str) -> list[Figure]:
    """All numbers of a text. In `83 to 85%` both have the unit."""
    matches = list(FIGURE.finditer(text))
    units = [match[2] or "" for match in matches]
    for n in range(len(matches) - 2, -1, -1):
        between = text[matches[n].end() : matches[n + 1].start()]
        if not units[n] and RANGE.fullmatch(between):
            units[n] = units[n + 1]
    result = []
    for match, unit in zip(matches, units, strict=True):
        base, scale = UNITS.get(unit, ("", 1.0))
        result.append(
            (float(match[1].replace(",", "")) * scale, base, f"{match[1]} {unit}".strip())
        )
    return result


def places(root: Path, name: str) -> list[Place]:
    """Where the README and the pages have figures of a benchmark."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [place for page in pages if page.exists() for place in _on(page, root, name)]


def _on(page: Path, root: Path, name: str) -> Iterator[Place]:
    """A heading or a paragraph that names scripts says whose the rows after it are."""
    script, paper = f"{name}.py", name.replace("reproduce-", "weft reproduce ")
    whole = {f"benchmarks/{script}", paper}
    of_section = of_tables = False
    short = str(page.relative_to(root))
    for number, block in _blocks(page.read_text(encoding="utf-8")):
        rows = block.splitlines()
        if rows[0].startswith("#"):
            of_section = of_tables = script in rows[0].split(":")[0]
        elif rows[0].startswith("|"):
            for n, row in enumerate(rows[2:], 2):
                last = row.rstrip("| ").rsplit("|", 1)[-1].strip()
                leads = f"#{name}py-" in row or _first_named(row, page.parent) in whole
                named_here = f"benchmarks/{script}" in row
                if of_tables or last in (f"`{script}`", f"`{paper}`") or leads or named_here:
                    yield Place(short, number + n, row, True)
        elif named := set(NAMED.findall(block)):
            mine = bool(named & whole)
            of_tables = of_section or mine
            if mine:
                yield Place(short, number, block, False)


def _first_named(row: str, folder: Path) -> str:
    """What the page that a row of the README leads to names first."""
    links = re.findall(r"\]\((docs/[\w-]+\.md)\)", row)
    for link in links:
        if named := NAMED.search((folder / link).read_text(encoding="utf-8")):
            return named[0]
    return ""


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, tables and headings, with the number of their first line."""
    number = 1
    for block in re.split(r"(\n\s*\n)", text):
        if block.strip():
            yield number, block.strip("\n")
        number += block.count("\n")


def absent(found: list[Place], output: str, within: float) -> tuple[int, list[str]]:
    """How many figures these places have, and those that the output does not have."""
    lines = [
        (line, own, set(WORD.findall(line.lower())))
        for line in output.splitlines()
        if (own := figures(line))  # a head without figures is no place to look in
    ]
    often = Counter(word for _, _, words in lines for word in words)
    total, news = 0, []
    for place in found:
        text = LINK.sub("]", place.text)
        wanted = [figure for figure in figures(text) if place.is_row or figure[1]]
        words = set(WORD.findall(text.lower()))
        scores = [sum(1 / often[word] for word in words & own) for _, _, own in lines]
        best = max(scores, default=0.0)
        there = [
            figure
            for (_, own, _), score in zip(lines, scores, strict=True)
            if score >= best / 2
            for figure in own
        ]
        gone = [one[2] for one in wanted if not any(_same(one, other, within) for other in there)]
        total += len(wanted)
        if gone:
            start = " ".join(text.strip("| ").split())[:60]
            news.append(f"{place.page}:{place.line}: {', '.join(gone)}   ({start})")
    return total, news


def _same(one: Figure, other: Figure, within: float) -> bool:
    """Equal within a share; where a side has no unit, the numbers as they are written."""
    if one[1] != other[1] and one[1] and other[1]:
        return False
    pairs = [(one[0], other[0])] if one[1] == other[1] else []
    if not (one[1] and other[1]):
        pairs.append((_written(one), _written(other)))
    return any(abs(a - b) <= within * max(abs(a), abs(b)) for a, b in pairs)


def _written(figure: Figure) -> float:
    return float(figure[2].split()[0].replace(",", ""))
