"""A mean, and how far it may be off by chance.

measured([2.5, 2.1, -0.5]).above(0.0)      # False: three numbers so far apart may as well have no gain
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Measured(NamedTuple):
    """A mean and its standard error, over trajectories, topologies or seeds."""

    mean: float
    error: float

    def above(self, least: float) -> bool:
        """More than `least` beyond chance: by two standard errors."""
        return self.mean - 2 * self.error > least

    def below(self, most: float) -> bool:
        """Less than `most` beyond chance: by two standard errors."""
        return self.mean + 2 * self.error < most

    def within(self, most: float) -> bool:
        """At most so far from 0, with one standard error added."""
        return abs(self.mean) + self.error <= most

    def __str__(self) -> str:
        return f"{self.mean:+.1%} ± {self.error:.1%}"


def measured(values: Sequence[float]) -> Measured:
    """The mean and its standard error; with one value the error is infinite."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return Measured(statistics.fmean(values), error)
