"""Small networks and fleets for the golden plans that strategies decide, and the one way to ask for one."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from weft import api
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.graph.capture.module import capture
from weft.graph.network import Graph
from weft.plans.derive import derive_profile
from weft.plans.plan import Mode, Plan
from weft.plans.profile import DeviceTimes, LayerCost, Profile

TIERS = Fleet(
    (
        Device("pi", "device", 0.8, data=True),
        Device("nuc", "edge", 4.0),
        Device("cloud", "cloud", 30.0),
    ),
    (Link(("pi", "nuc"), 40.0, 60.0, 2.0), Link(("nuc", "cloud"), 10.0, 15.0, 12.0)),
)
# The same machines, with links on which the device itself should compute.
SLOW = Fleet(
    TIERS.devices,
    (Link(("pi", "nuc"), 6.0, 6.0, 1.0), Link(("pi", "cloud"), 3.0, 3.0, 5.0, loss=0.05)),
)


def _office(pi: float, nuc: float, cloud: float) -> Fleet:
    """Links so fast that it pays to share the samples out."""
    pairs = [("pi", "nuc"), ("nuc", "cloud"), ("pi", "cloud")]
    return Fleet(
        (
            Device("pi", "device", pi, data=True),
            Device("nuc", "edge", nuc),
            Device("cloud", "cloud", cloud),
        ),
        tuple(Link(pair, 200.0, 200.0, 0.5) for pair in pairs),
    )


ALIKE = _office(2.0, 3.0, 5.0)
EQUAL = _office(2.0, 2.0, 2.0)
# No device has room for the whole network.
TIGHT = Fleet(
    (
        Device("pi", "device", 0.8, memory_mb=1.0, data=True),
        Device("phone", "device", 1.5, memory_mb=1.0),
        Device("nuc", "edge", 4.0, memory_mb=1.0),
    ),
    (Link(("pi", "phone"), 20.0, 20.0), Link(("phone", "nuc"), 30.0, 30.0, 1.0)),
)
CITY = Fleet(
    (
        Device("phone", "device", 1.0, data=True),
        Device("edge1", "edge", 6.0),
        Device("edge2", "edge", 9.0),
        Device("cloud", "cloud", 40.0),
    ),
    (
        Link(("phone", "edge1"), 25.0, 25.0, 4.0),
        Link(("phone", "edge2"), 12.0, 30.0, 9.0),
        Link(("phone", "cloud"), 8.0, 8.0, 30.0),
        Link(("edge1", "edge2"), 100.0, 100.0, 1.0),
    ),
)
CELL = Fleet(
    (
        Device("gw", "edge", 1.0, data=True),
        Device("r1", gflops=0.5),
        Device("r2", gflops=0.25),
        Device("r3", gflops=0.5),
    ),
    medium=(Medium("wifi", "gw", ("r1", "r2", "r3"), 20.0, 1.0),),
)


def _swarm(speeds: tuple[float, ...]) -> Fleet:
    """Every two devices hear each other, the worse the further apart their numbers are."""
    names = [f"n{i}" for i in range(1, len(speeds) + 1)]
    pairs = [(a, b) for b in range(len(names)) for a in range(b)]
    return Fleet(
        tuple(Device(n, gflops=g, data=n == "n1") for n, g in zip(names, speeds, strict=True)),
        tuple(
            Link((names[a], names[b]), 1.0, 1.0,
                 up_loss=0.04 * (b - a) ** 2, down_loss=0.05 * (b - a) ** 2)
            for a, b in pairs
        ),
    )  # fmt: skip


SWARM = _swarm((2.0,) * 5)
UNEQUAL = _swarm((2.0, 1.0, 4.0, 2.0))
PEERS = Fleet(
    tuple(
        Device(f"p{i}", "device", gflops, memory_mb=memory, data=i == 1)
        for i, (gflops, memory) in enumerate(
            [(2.0, 64.0), (1.0, None), (4.0, 64.0), (2.0, None)], 1
        )
    ),
    medium=(Medium("wifi", "p1", ("p1", "p2", "p3", "p4"), 50.0, 1.0),),
)


# An hourglass: what crosses the cuts in the middle is small, and most work is there. The device with the
# samples is the fastest at the first and the last layer.
HOURGLASS = Profile(
    "hourglass",
    60_000,
    tuple(
        LayerCost(f"layer{n}", weights, output, 1e6, saved_bytes=4000)
        for n, (weights, output) in enumerate(
            [(2000, 900), (9000, 700), (8000, 600), (9000, 800), (2000, 60_000)]
        )
    ),
    {
        name: DeviceTimes(forward, tuple(2 * t for t in forward), (0.0002,) * 5)
        for name, forward in {
            "pi": (0.0004, 0.05, 0.06, 0.05, 0.0004),
            "nuc": (0.0006, 0.004, 0.03, 0.004, 0.02),
            "cloud": (0.0006, 0.004, 0.002, 0.004, 0.02),
        }.items()
    },
)


def _perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 5)
    )


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 10), nn.ReLU(), nn.Linear(10, 4),
    )  # fmt: skip


OWN = {
    "perceptron": (_perceptron, (1, 4, 4)),
    "convolutions": (_convolutions, (1, 8, 8)),
}


@functools.cache
def _graph(model: str) -> Graph:
    if model in OWN:
        build, shape = OWN[model]
        return capture(build(), torch.zeros(2, *shape), name=model)
    module, example = api.load_model(model)
    return capture(module, example, name=model)


def plan(
    strategy: str, model: str | Profile, fleet: Fleet, batch: int, mode: Mode = "train",
    optimizer: str = "sgd", source: str | None = None, **options: Any,
) -> Plan:  # fmt: skip
    graph = _graph(model) if isinstance(model, str) else None
    profile = model if isinstance(model, Profile) else derive_profile(_graph(model), fleet)
    task = api.make_task(
        profile, fleet, batch=batch, mode=mode, options=options,
        graph=graph, source=source, optimizer=optimizer,
    )  # fmt: skip
    return api.decide(strategy, task)
