"""A small plan and its two timelines, for every test that shows something."""

from __future__ import annotations

import pytest

from weft.fleet.fleet import Device, Fleet, Link
from weft.plans.plan import Plan, Predicted, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.program.timeline import Span, Timeline

NAMES = ("conv1", "conv2", "conv3", "fc1", "fc2")
OUTPUTS = (193600, 86528, 43264, 16384, 40)


def times(speed: float) -> DeviceTimes:
    forward = tuple(t / speed for t in (0.004, 0.006, 0.003, 0.002, 0.0001))
    update = tuple(t / speed for t in (0.001, 0.002, 0.002, 0.02, 0.0005))
    return DeviceTimes(forward, tuple(2 * t for t in forward), update)


@pytest.fixture
def plan() -> Plan:
    """A pipeline of three devices."""
    fleet = Fleet(
        (
            Device("pi", "device", gflops=0.9, memory_mb=1024, data=True),
            Device("nuc", "edge", gflops=7.5),
            Device("cloud", "cloud", gflops=100.0),
        ),
        (Link(("pi", "nuc"), 5.0, 5.0), Link(("pi", "cloud"), 2.0, 2.0)),
    )
    layers = tuple(
        LayerCost(name, 140_000 * (i + 1), output, forward_flops=1e7, saved_bytes=output)
        for i, (name, output) in enumerate(zip(NAMES, OUTPUTS, strict=True))
    )
    devices = {"pi": times(1), "nuc": times(8), "cloud": times(60)}
    return Plan(
        strategy="chain",
        model="alexnet",
        batch=128,
        mode="train",
        source="pi",
        fleet=fleet,
        profile=Profile("alexnet", 49152, layers, devices),
        shards=(Shard("pi", (0, 1)), Shard("nuc", (2, 2)), Shard("cloud", (3, 4))),
        micro_batches=4,
        in_flight=2,
        predicted=Predicted(
            compute_s={"pi": 2.4, "nuc": 0.2, "cloud": 0.11},
            transfer_bytes={"pi>nuc": 11_075_584, "nuc>pi": 11_075_584, "pi>cloud": 1_024},
            memory_bytes={"pi": 38_000_000, "nuc": 9_000_000, "cloud": 52_000_000},
            step_s=3.21,
        ),
    )


def spans(stretch: float, steps: int) -> list[Span]:
    """A pipeline of two devices and a link each way; `stretch` makes everything slower."""
    found: list[Span] = []
    for step in range(steps):
        t = 0.42 * step
        found += [
            Span("pi", "load", t, t + 0.01, step),
            Span("pi", "forward", t + 0.01, t + 0.11, step, label="0-1"),
            Span("pi>nuc", "transfer", t + 0.11, t + 0.19, step, label="act2.0", bytes=50_000),
            Span("nuc", "wait", t, t + 0.19, step, label="act2.0"),
            Span("nuc", "forward", t + 0.19, t + 0.21, step, label="2-4"),
            Span("nuc", "loss", t + 0.21, t + 0.213, step),
            Span("nuc", "backward", t + 0.213, t + 0.25, step, label="2-4"),
            Span("nuc", "update", t + 0.25, t + 0.255, step, label="2-4"),
            Span("nuc>pi", "transfer", t + 0.25, t + 0.29, step, label="grad2.0", bytes=50_000),
            Span("pi", "wait", t + 0.11, t + 0.29, step, label="grad2.0"),
            Span("pi", "backward", t + 0.29, t + 0.41, step, label="0-1"),
            Span("pi", "update", t + 0.41, t + 0.42, step, label="0-1"),
        ]
    return [
        Span(s.where, s.what, s.start * stretch, s.end * stretch, s.step, s.micro, s.label, s.bytes)
        for s in found
    ]


@pytest.fixture
def predicted() -> Timeline:
    return Timeline(tuple(spans(1.0, 4)), tuple(0.42 * (n + 1) for n in range(4)))


@pytest.fixture
def measured() -> Timeline:
    ends = tuple(0.42 * 1.05 * (n + 1) for n in range(10))
    return Timeline(tuple(spans(1.05, 10)), ends, source="measured")
