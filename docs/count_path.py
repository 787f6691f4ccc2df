"""Counts the lines of code on the reading path of docs/architecture.md.

python docs/count_path.py          one row for each stop, and the sum
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parent / "architecture.md"
ROW = re.compile(r"^\| \d+ \| \[[^\]]+\]\(([^)]+)\) \| (.+?) \| (\d+) \|$", re.MULTILINE)


class Stop(NamedTuple):
    """A file of the path: what to read of it, how long that is, and what the page says of it."""

    file: Path
    names: tuple[str, ...]
    lines: int
    said: int


def stops() -> Iterator[Stop]:
    """The stops of the page in their order; an error where a file or a name is not there."""
    for link, names, said in ROW.findall(PAGE.read_text(encoding="utf-8")):
        file = (PAGE.parent / link).resolve()
        wanted = tuple(re.findall(r"`([^`]+)`", names))
        yield Stop(file, wanted, sum(length(file, name) for name in wanted), int(said))


def length(file: Path, name: str) -> int:
    """Lines of a function, class or method (`Class.method`), its docstring included."""
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    found: ast.stmt | None = None
    for part in name.split("."):
        found = next((node for node in body if getattr(node, "name", None) == part), None)
        if found is None:
            raise LookupError(f"{PAGE.name}: {file.name} has no {name}")
        body = getattr(found, "body", [])
    assert found is not None
    assert found.end_lineno is not None
    return found.end_lineno - found.lineno + 1


if __name__ == "__main__":
    path = list(stops())
    for stop in path:
        print(f"{stop.lines:5}  {stop.said:5} said  {stop.file.name}: {', '.join(stop.names)}")
    print(f"{sum(stop.lines for stop in path):5}  in all")
