"""Random small planning tasks, and a price that needs no simulator."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.plan.plan import Plan
from weft.plan.profile import DeviceTimes, LayerCost, Profile
from weft.plan.task import Task

TIERS = ("device", "edge", "cloud", "edge")


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


times = st.floats(0, 3)
mbps = st.floats(1e-3, 0.2)
quality = {"latency_ms": st.sampled_from([0.0, 100.0]), "loss": st.sampled_from([0.0, 0.25])}


@st.composite
def random_fleet(draw: st.DrawFn, count: int) -> Fleet:
    """A row of devices d0 (with the data), d1, ...; perhaps with a Wi-Fi beside it."""
    names = [f"d{index}" for index in range(count)]
    devices = tuple(Device(name, TIERS[i]) for i, name in enumerate(names))  # type: ignore[arg-type]
    links = tuple(
        draw(st.builds(Link, st.just(pair), mbps, mbps, **quality))
        for pair in zip(names, names[1:], strict=False)
    )
    media: tuple[Medium, ...] = ()
    if count > 2 and draw(st.booleans()):
        members = st.just(tuple(names[1:]))
        media = (draw(st.builds(Medium, st.just("wifi"), st.just("d0"), members, mbps, **quality)),)
        links = links[: draw(st.integers(0, len(links)))]
    return Fleet(devices, links, media)


@st.composite
def random_profile(draw: st.DrawFn, fleet: Fleet, layers: int) -> Profile:
    size = st.integers(0, 5000)
    cost = st.builds(
        LayerCost, st.just("layer"), size, size, backward_bytes=st.none() | st.integers(1, 5000)
    )
    some = st.lists(times, min_size=layers, max_size=layers).map(tuple)
    device = st.builds(DeviceTimes, some, some, some, st.just(()) | some, st.just(()) | some)
    return Profile(
        "random",
        draw(size),
        tuple(draw(cost) for _ in range(layers)),
        {name: draw(device) for name in fleet.names},
    )


@st.composite
def random_task(draw: st.DrawFn, max_layers: int = 5, devices: int = 3) -> Task:
    fleet = draw(random_fleet(devices))
    return Task(
        profile=draw(random_profile(fleet, draw(st.integers(1, max_layers)))),
        fleet=fleet,
        batch=draw(st.integers(1, 6)),
        mode=draw(st.sampled_from(["train", "infer"])),
        source="d0",
        price=serial_price,
        options={
            "route": draw(st.sampled_from(["min", "store_and_forward"])),
            "codec": draw(st.sampled_from(["none", "fp16", "int8"])),
        },
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
    """A task of four even layers on pi, nuc (8 times as fast) and cloud (40 times), to be varied."""

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
