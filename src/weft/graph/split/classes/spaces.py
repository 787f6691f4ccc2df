"""Rows of channels, and which of them are the same ones.

spaces = Spaces()
one, other = spaces.new(64), spaces.new(64)
spaces.tie((one,), (other,))         # what is added to each other must keep the same channels
spaces.root(other) == one
"""

from __future__ import annotations

from collections.abc import Sequence


class Spaces:
    """Spaces by number. Those that were tied are one: each points to the earliest."""

    def __init__(self) -> None:
        self.widths: list[int] = []
        self._same: list[int] = []

    def new(self, width: int) -> int:
        """A space of so many channels."""
        self.widths.append(width)
        self._same.append(len(self._same))
        return len(self._same) - 1

    def root(self, space: int) -> int:
        """The number that all spaces have in common that are one."""
        while self._same[space] != space:
            space = self._same[space]
        return space

    def width(self, spaces: Sequence[int]) -> int:
        """Channels of several spaces in a row."""
        return sum(self.widths[space] for space in spaces)

    def tie(self, one: Sequence[int], other: Sequence[int]) -> bool:
        """Both rows of channels are the same ones from now on; False where they cannot be."""
        if [self.widths[space] for space in one] != [self.widths[space] for space in other]:
            return False
        for a, b in zip(one, other, strict=True):
            first, second = sorted((self.root(a), self.root(b)))
            self._same[second] = first
        return True

    def in_order(self, last: int) -> list[int]:
        """Each space once, by its root; the given one last."""
        roots = {self.root(space) for space in range(len(self.widths))} - {last}
        return [*sorted(roots), last]
