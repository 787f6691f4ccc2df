"""A client that walks: straight lines at one speed between random points of a rectangle.

walk = Walk(city.box, speed=5.0, seed=3)
walk.at(np.arange(60.0))        # positions of the first minute, metres
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Walk:
    """A walk between random points. The path depends only on the seed: at twice the speed the client walks
    the same path in half the time."""

    def __init__(self, box: tuple[float, float], speed: float, seed: int) -> None:
        self.speed, self._box = speed, box
        self._random = np.random.default_rng([seed, 1])
        self._corners = [self._some_point()]
        self._metres = [0.0]  # of the path up to each corner

    def at(self, seconds: Floats) -> Floats:
        """Positions (rows of x, y) at these times."""
        way = np.asarray(seconds, dtype=float) * self.speed
        self._extend(float(way.max(initial=0.0)))
        corners = np.array(self._corners)
        x = np.interp(way, self._metres, corners[:, 0])
        y = np.interp(way, self._metres, corners[:, 1])
        return np.stack([x, y], axis=-1)

    def velocity(self, second: float) -> Floats:
        """Metres per second, east and north, at this time."""
        way = second * self.speed
        self._extend(way)
        index = int(np.searchsorted(self._metres, way, side="right"))
        leg = self._corners[index] - self._corners[index - 1]
        metres_per_s: Floats = leg / np.hypot(*leg) * self.speed
        return metres_per_s

    def _extend(self, metres: float) -> None:
        while self._metres[-1] <= metres:
            corner = self._some_point()
            length = float(np.hypot(*(corner - self._corners[-1])))
            if length < 1.0:  # too close to the last point: draw another one
                continue
            self._corners.append(corner)
            self._metres.append(self._metres[-1] + length)

    def _some_point(self) -> Floats:
        return self._random.uniform((0.0, 0.0), self._box)


def stays_s(offset: Floats, velocity: Floats, radius: Floats) -> Floats:
    """Seconds until a client at `offset` from each centre leaves the circle, if it goes straight on."""
    speed2 = float(velocity @ velocity)
    if speed2 == 0.0:
        return np.full(len(offset), np.inf)
    along = offset @ velocity
    inside = radius**2 - (offset**2).sum(axis=1)
    seconds: Floats = (-along + np.sqrt(np.maximum(along**2 + speed2 * inside, 0.0))) / speed2
    return np.maximum(seconds, 0.0)
