"""Random small planning tasks, and a price that needs no simulator."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from weft.fleet.fleet import Device, Fleet, Link, Medium, Tier
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.plans.task import Task

TIERS: tuple[Tier, ...] = ("device", "edge", "cloud", "edge")


def serial_price(plan: Plan) -> float:
    """Computing and sending one after the other; micro-batches hide all but their share of it."""
    work = math.fsum(
        plan.profile.devices[shard.device].forward(*shard.layers, plan.batch)
        for shard in plan.shards
    )
    devices = [plan.source, *(shard.device for shard in plan.shards)]
    cuts = [plan.profile.cut_bytes(shard.layers[0]) for shard in plan.shards]
    sending = 0.0
    for before, after, size in zip(devices, devices[1:], cuts, strict=False):
        sending += plan.batch * size / plan.fleet.path_rate(before, after, plan.route)
    return work + sending / min(plan.micro_batches, plan.in_flight)


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
def random_task(draw: st.DrawFn, max_layers: int = 5, devices: int = 3) -> Task:
    fleet = draw(random_fleet(devices))
    return Task(
        profile=draw(random_profile(fleet, draw(st.integers(1, max_layers)))),
        fleet=fleet,
        batch=draw(BATCHES),
        mode=draw(MODES),
        source="d0",
        price=serial_price,
        options={"route": draw(ROUTES), "codec": draw(CODEC_NAMES)},
    )


@pytest.fixture(scope="session")
def random_tasks() -> Callable[..., st.SearchStrategy[Task]]:
    """`data.draw(random_tasks(max_layers=4, devices=3))`"""
    return random_task


THREE = Fleet(
    (Device("pi"), Device("nuc", "edge"), Device("cloud", "cloud")),
    (Link(("pi", "nuc"), 5, 5), Link(("nuc", "cloud"), 3, 3)),
)


@pytest.fixture(scope="session")
def make_task() -> Callable[..., Task]:
    """A task of even layers on pi, nuc (8 times as fast) and cloud (40 times), to be varied."""

    def make(
        fleet: Fleet = THREE,
        mode: str = "train",
        batch: int = 8,
        speeds: dict[str, float] | None = None,
        price: Callable[[Plan], float] = serial_price,
        source: str = "pi",
        layers: int = 4,
        **options: str,
    ) -> Task:
        fast = {"pi": 1.0, "nuc": 8.0, "cloud": 40.0} | (speeds or {})
        slow = DeviceTimes((1.0,) * layers, (2.0,) * layers, (0.1,) * layers)
        cost = LayerCost("layer", 1_000_000, 10_000)
        devices = {name: slow.scaled(1 / fast.get(name, 1.0)) for name in fleet.names}
        profile = Profile("even", 40_000, (cost,) * layers, devices)
        return Task(profile, fleet, batch, mode, source, price, options)  # type: ignore[arg-type]

    return make
