"""An optimizer's settings that change from minibatch to minibatch, as plain numbers.

    course = Course(0, "lr", ((0, 0.1), (50, 0.01)))      # 0.1 from minibatch 0 on, 0.01 from 50 on
    rates.take((course,), first=0)
    rates.apply(optimizer, step=70)

The run turns a scheduler into such numbers (`user_schedule`). Devices get the numbers of the minibatches that
they are asked to do.
"""

from __future__ import annotations

from bisect import bisect_right

import torch
from msgspec import Struct

Number = float | tuple[float | None, ...]


class Course(Struct, frozen=True, array_like=True):
    """One setting of one group: the value from each listed minibatch on."""

    group: int
    key: str
    points: tuple[tuple[int, Number], ...]


class Rates:
    """The settings that a device knows, by minibatch."""

    def __init__(self) -> None:
        self._points: dict[tuple[int, str], tuple[tuple[int, Number], ...]] = {}

    def take(self, courses: tuple[Course, ...], first: int) -> None:
        """The numbers from minibatch `first` on; those before it stay. Another thread may call `apply`."""
        points = dict(self._points)
        for course in courses:
            before = points.get((course.group, course.key), ())
            points[course.group, course.key] = (
                *(point for point in before if point[0] < first),
                *course.points,
            )
        self._points = points

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Gives an optimizer the settings of a minibatch."""
        for (group, key), points in self._points.items():
            place = bisect_right(points, step, key=lambda point: point[0]) - 1
            if place >= 0 and group < len(optimizer.param_groups):
                optimizer.param_groups[group][key] = points[place][1]
