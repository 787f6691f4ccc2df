"""How notebooks show Weft's results. The classes stand at the bottom of the house and know no report.
`weft.api` says how each of them is written as HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HTML: dict[str, Callable[[Any], str]] = {}  # by the name of the class


class Shown:
    """A class that a notebook shows as HTML, once `weft.api` is imported."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """What Jupyter asks for; None: it shows the text."""
        write = HTML.get(type(self).__name__)
        return None if write is None else write(self)
