"""Random small planning tasks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from weft.fleet.fleet import Device, Fleet, Link, Medium, Tier
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.task import Task

TIERS: tuple[Tier, ...] = ("device", "edge", "cloud", "edge")


# Built once: hypothesis checks every new strategy, which would make shrinking slow.
SIZES = st.integers(0, 5000)
LAYERS = st.builds(
    LayerCost, st.just("layer"), SIZES, SIZES, backward_bytes=st.none() | st.integers(1, 5000)
)
QUALITY = st.tuples(  # megabits per second both ways, milliseconds, loss
    st.floats(1e-3, 0.2),
    st.floats(1e-3, 0.2),
    st.sampled_from([0.0, 100.0]),
    st.sampled_from([0.0, 0.25]),
)
BATCHES = st.integers(1, 6)
MODES = st.sampled_from(["train", "infer"])
ROUTES = st.sampled_from(["min", "store_and_forward"])
CODEC_NAMES = st.sampled_from(["none", "fp16", "int8"])


@functools.cache
def random_times(layers: int) -> st.SearchStrategy[DeviceTimes]:
    some = st.tuples(*[st.floats(0, 3)] * layers)
    none_or_some = st.just(()) | some
    return st.builds(DeviceTimes, some, some, some, none_or_some, none_or_some)


@st.composite
def random_fleet(draw: st.DrawFn, count: int) -> Fleet:
    """A row of devices d0 (with the data), d1, ...; perhaps with a Wi-Fi in place of some links."""
    names = [f"d{index}" for index in range(count)]
    devices = tuple(Device(name, TIERS[i]) for i, name in enumerate(names))
    links = tuple(Link(pair, *draw(QUALITY)) for pair in itertools.pairwise(names))
    if count < 3 or draw(st.booleans()):
        return Fleet(devices, links)
    speed, _, latency, loss = draw(QUALITY)
    wifi = Medium("wifi", "d0", tuple(names[1:]), speed, latency, loss)
    return Fleet(devices, links[: draw(st.integers(0, len(links)))], (wifi,))


@st.composite
def random_profile(draw: st.DrawFn, fleet: Fleet, layers: int) -> Profile:
    costs = tuple(draw(LAYERS) for _ in range(layers))
    devices = {name: draw(random_times(layers)) for name in fleet.names}
    return Profile("random", draw(SIZES), costs, devices)


@st.composite
def random_task(
    draw: st.DrawFn, price: Callable[[Plan], float], max_layers: int = 5, devices: int = 3
) -> Task:
    fleet = draw(random_fleet(devices))
    return Task(
        profile=draw(random_profile(fleet, draw(st.integers(1, max_layers)))),
        fleet=fleet,
        batch=draw(BATCHES),
        mode=draw(MODES),
        source="d0",
        price=price,
        options={"route": draw(ROUTES), "codec": draw(CODEC_NAMES)},
    )


@pytest.fixture(scope="session")
def random_tasks(serial_price: Callable[[Plan], float]) -> Callable[..., st.SearchStrategy[Task]]:
    """`data.draw(random_tasks(max_layers=4, devices=3))`"""
    return functools.partial(random_task, serial_price)
