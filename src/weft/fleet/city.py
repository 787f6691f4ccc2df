"""A city with edge servers that a client walks through: which servers are in reach, how fast and how far they
are.

    city = generated_city(seed=1)            # or real_city(load_eua().servers, seed=1)
    day = Day(city, Walk(city.box, 5.0, seed=7), seed=7)
    day.at(12.0).reach                       # which servers cover the client after 12 seconds

The cloud machine is the last of the servers. It is always in reach, far away, and never loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.fleet.mobility import Walk

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CLOUD = "cloud"
SITES, WIDTH_M, HEIGHT_M = 125, 2000.0, 1300.0  # as in the EUA data, rounded
RADIUS_M = (300.0, 500.0)
GPU_SLOWDOWN = (1.0, 1.45)  # a 3080Ti, a 2080Ti
EDGE_RTT_S = (0.005, 0.040)
CLOUD_RTT_S = (0.100, 0.170)
PEAK_UP = 900e6 / 8  # bytes per second beside the mast; the downlink has twice the uplink
FAR_LOSS = 0.75  # share of the peak that is lost at the edge of the cell
CLOUD_SHARE = 0.42  # of the peak
LOAD_MEAN, LOAD_SD, LOAD_TAU, LOAD_MAX = 0.25, 0.3, 180.0, 2.0
LINK_SD, LINK_TAU = 0.15, 30.0  # of the logarithm of the rate
RTT_SD, RTT_TAU, RTT_LEAST = 0.003, 60.0, 0.001
BLOCK_S = 1024  # seconds of weather that are drawn at once


@dataclass(frozen=True)
class City:
    """The servers, which do not change: edge servers first, the cloud last."""

    places: Floats  # rows of x, y in metres; the cloud's is not used
    radius: Floats
    gpu_slowdown: Floats
    rtt_s: Floats
    box: tuple[float, float]  # width and height in metres of the area in which the client walks
    real: bool  # positions of the EUA data, not generated ones

    @cached_property
    def names(self) -> tuple[str, ...]:
        return (*(f"edge{index}" for index in range(len(self.places) - 1)), CLOUD)


def real_city(servers: Floats, seed: int) -> City:
    """Servers at real positions (rows of latitude and longitude). All else about them is drawn at random."""
    metres = 6_371_000.0 * np.array([1.0, np.cos(np.radians(servers[:, 0].mean()))])
    places = (np.radians(servers - servers.min(axis=0)) * metres)[:, ::-1]
    return _equip(places, seed, real=True)


def generated_city(seed: int) -> City:
    """The same number of servers on the same area, with random positions, for users without the real data."""
    random = np.random.default_rng([seed, 1])
    return _equip(random.uniform((0.0, 0.0), (WIDTH_M, HEIGHT_M), (SITES, 2)), seed, real=False)


def _equip(places: Floats, seed: int, real: bool) -> City:
    count = len(places)
    random = np.random.default_rng([seed, 2])
    slow = np.repeat(GPU_SLOWDOWN, [count - count // 2, count // 2])
    return City(
        places=np.vstack([places, [0.0, 0.0]]),
        radius=np.append(random.uniform(*RADIUS_M, count), np.inf),
        gpu_slowdown=np.append(random.permutation(slow), 1.0),
        rtt_s=np.append(random.uniform(*EDGE_RTT_S, count), random.uniform(*CLOUD_RTT_S)),
        box=(float(places[:, 0].max()), float(places[:, 1].max())),
        real=real,
    )


class Moment(NamedTuple):
    """One second of a day, by server; or several seconds, then by second and server."""

    reach: Bools
    slowdown: Floats  # GPU and load
    up_bytes_per_s: Floats
    down_bytes_per_s: Floats
    rtt_s: Floats


@dataclass
class _Weather:
    """Unit-variance AR(1) processes of all servers, and their current values."""

    load: Floats
    link: Floats
    rtt: Floats


class Day:
    """The servers' state on one walk, second by second. Two days with the same seed are equal, in whatever
    order they are read."""

    def __init__(self, city: City, walk: Walk, seed: int) -> None:
        self.city, self.walk = city, walk
        self._random = np.random.default_rng([seed, 3])
        count = len(city.radius)
        self._last = _Weather(*self._random.standard_normal((3, count)))
        # The cloud's distance differs from walk to walk.
        self._rtt_s = city.rtt_s.copy()
        self._rtt_s[-1] = self._random.uniform(*CLOUD_RTT_S)
        self._blocks: list[Moment] = []
        self._all: Moment | None = None

    def until(self, second: float) -> Moment:
        """All seconds from the first up to this one, and maybe some more."""
        while len(self._blocks) * BLOCK_S <= second:
            self._blocks.append(self._draw(len(self._blocks) * BLOCK_S))
            self._all = None
        if self._all is None:
            self._all = Moment(*(np.concatenate(part) for part in zip(*self._blocks, strict=True)))
        return self._all

    def at(self, second: float) -> Moment:
        whole = self.until(second)
        return Moment(*(part[int(second)] for part in whole))

    def _draw(self, begin: int) -> Moment:
        weather = self._weather()
        city, seconds = self.city, np.arange(begin, begin + BLOCK_S, dtype=float)
        where = self.walk.at(seconds)
        far = np.hypot(*np.moveaxis(where[:, None, :] - city.places[None], -1, 0)) / city.radius
        share = 1 - FAR_LOSS * np.minimum(far, 1.0) ** 2
        share[:, -1] = CLOUD_SHARE
        load = np.clip(LOAD_MEAN + LOAD_SD * weather.load, 0.0, LOAD_MAX)
        load[:, -1] = 0.0
        up = PEAK_UP * share * np.exp(LINK_SD * weather.link)
        rtt = np.maximum(self._rtt_s + RTT_SD * weather.rtt, RTT_LEAST)
        return Moment(far <= 1.0, city.gpu_slowdown * (1 + load), up, 2 * up, rtt)

    def _weather(self) -> _Weather:
        count = len(self.city.radius)
        processes = {}
        for field, tau in zip(fields(_Weather), (LOAD_TAU, LINK_TAU, RTT_TAU), strict=True):
            keep = np.exp(-1.0 / tau)
            new = self._random.standard_normal((BLOCK_S, count)) * np.sqrt(1 - keep**2)
            value = getattr(self._last, field.name)
            for second in range(BLOCK_S):
                new[second] += keep * value
                value = new[second]
            processes[field.name] = new
        block = _Weather(**processes)
        self._last = _Weather(block.load[-1], block.link[-1], block.rtt[-1])
        return block
