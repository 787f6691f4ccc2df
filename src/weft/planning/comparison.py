"""A comparison as `weft.compare` returns it: the rows, best first, and the advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from weft.planning.advise import Best
from weft.planning.compare import Row
from weft.showing import Shown


class Comparison(Struct, Shown, frozen=True):
    """Rows of strategies, best first. `best` is the advised plan; None if no strategy has one."""

    rows: tuple[Row, ...]
    best: Best | None
    title: str = ""

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, strategy: str) -> Row:
        """The best row of a strategy."""
        for row in self.rows:
            if row.strategy == strategy:
                return row
        raise KeyError(strategy)

    def __str__(self) -> str:
        return _TABLE(self) if _TABLE is not None else self.title


_TABLE: Callable[[Comparison], str] | None = None


def show_with(table: Callable[[Comparison], str]) -> None:
    """Sets the function that prints comparisons. `weft.api` calls it."""
    global _TABLE
    _TABLE = table
