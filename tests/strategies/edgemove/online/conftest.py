"""Costs of a small network, servers, looks at a run, and a city."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from weft.fleet.city import Day, generated_city
from weft.fleet.mobility import Walk
from weft.plans.online import Seen, Server, Setting
from weft.strategies.edgemove.model import SplitCosts


@pytest.fixture(scope="session")
def costs() -> SplitCosts:
    """Eight even layers: 80 ms on the client, 8 ms on a worker; cuts shrink from 1 MB to 8 kB."""
    sizes = 2e6 / 2.0 ** np.arange(9)
    return SplitCosts(
        forward_s=np.arange(9) * 0.010 / 3,
        client_s=np.arange(9) * 0.010,
        worker_s=0.008 - np.arange(9) * 0.001,
        up_bytes=sizes,
        down_bytes=sizes,
        param_bytes=np.arange(9) * 1e6,
    )


@pytest.fixture(scope="session")
def server() -> Callable[..., Server]:
    def make(name: str, slowdown: float = 1.0, mbytes: float = 100.0, rtt_s: float = 0.01,
             tier: str = "edge", stays_s: float = 600.0) -> Server:  # fmt: skip
        return Server(name, slowdown, mbytes * 1e6, 2e6 * mbytes, rtt_s, tier, stays_s)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def look() -> Callable[..., Seen]:
    def make(setting: Setting, *servers: Server, period_s: float = 0.04, step: int = 500,
             **more: object) -> Seen:  # fmt: skip
        return Seen(step, step * 0.04, setting, period_s, servers, **more)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def a_day() -> Callable[..., Day]:
    def make(seed: int = 1, speed: float = 5.0) -> Day:
        city = generated_city(seed=1)
        return Day(city, Walk(city.box, speed, seed), seed)

    return make
