"""The clock of rounds tells what the simulator tells, to the last digit."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.fleet.fleet import Device, Fleet, Medium
from weft.planning.task import ask
from weft.plans.rounds import RoundMode
from weft.plans.task import Task
from weft.simulate.price import price
from weft.strategies.coopai.block_turns import even
from weft.strategies.coopai.clock import Candidate, RoundClock
from weft.strategies.coopai.clock_events import COMPUTE, RECV, SEND, finish
from weft.strategies.coopai.geometry import DenseLayer, Geometry, RowLayer, geometry_of
from weft.strategies.coopai.polish import changes
from weft.strategies.coopai.sequence import task_in_sequence
from weft.strategies.coopai.slicing import Block
from weft.strategies.coopai.strategy import places, rounds_plan


@cache
def asked(model: str, batch: int, latency_ms: float, codec: str) -> Task:
    names = ("r1", "r2", "r3", "r4")
    speeds = (0.5, 0.5, 0.25, 0.4)
    fleet = Fleet(
        (Device("gw", "edge", 1.0, data=True),
         *(Device(name, gflops=speed) for name, speed in zip(names, speeds, strict=True))),
        medium=(Medium("wifi", "gw", names, 20.0, latency_ms),),
    )  # fmt: skip
    options = {"codec": codec}
    return task_in_sequence(ask(model, fleet, mode="infer", batch=batch, options=options))


def single_layers(geometry: Geometry, k: int, unit_mode: RoundMode) -> tuple[Block, ...]:
    found = []
    for m, layer in enumerate(geometry.layers):
        modes: dict[type, RoundMode] = {RowLayer: "rows", DenseLayer: unit_mode}
        block = Block((m, m), modes.get(type(layer), "whole"))
        shares: tuple[int, ...] = (1, *(0,) * (k - 1))
        if block.mode != "whole":
            shares = tuple(b - a for a, b in even(places(geometry, block), k))
        found.append(Block(block.layers, block.mode, shares))
    return tuple(found)


@settings(deadline=None, max_examples=20)
@given(
    model=st.sampled_from(["vgg-small", "resnet8"]),
    k=st.integers(1, 4),
    frames=st.sampled_from([1, 1, 3]),
    latency_ms=st.sampled_from([0.0, 2.0]),
    codec=st.sampled_from(["none", "int8"]),
    unit_mode=st.sampled_from(["model", "data"]),
    seed=st.integers(0, 10**6),
    seat=st.sampled_from([None, 0, 1]),
)
def test_the_clock_s_seconds_are_the_simulator_s(
    model: str, k: int, frames: int, latency_ms: float, codec: str, unit_mode: RoundMode, seed: int,
    seat: int | None,
) -> None:  # fmt: skip
    """Whatever the blocks, shares, overlaps and frames in flight; one clock for all of them.
    `seat`: where the gateway sits that computes too."""
    given_task = asked(model, 6, latency_ms, codec)
    assert given_task.graph is not None
    geometry = geometry_of(given_task.graph)
    devices: tuple[str, ...] = ("r1", "r2", "r3", "r4")[:k]
    if seat is not None:
        devices = (*devices[:seat], "gw", *devices[seat + 1 :])
    k = len(devices)
    clock = RoundClock(given_task, devices, samples=6 // frames, frames=frames)
    generator = random.Random(seed)
    blocks = single_layers(geometry, k, unit_mode)
    now = Candidate(k, blocks, (seed % 2 == 0,) * len(blocks), generator.choice((1, frames)))
    for _ in range(4):
        for _ in range(3):
            change = generator.choice(changes(geometry, overlap=True))
            now = change(generator, now, generator.randrange(len(now.blocks))) or now
        plan = rounds_plan(
            given_task, "coopai+", devices, now.blocks, overlap=now.overlap, halves=now.halves,
            micro_batches=frames, in_flight=now.in_flight,
        )  # fmt: skip
        assert clock.seconds(now) == pytest.approx(price(plan).seconds, rel=1e-9)


def test_a_device_waits_for_its_message_and_a_message_for_the_medium() -> None:
    """Two devices send at 1 and 2; a message takes 3. The gateway takes them in their order."""
    gateway = [(0, ((RECV, 0.0, 1), (RECV, 0.0, 2), (COMPUTE, 0.5, 0)))]
    first = [(0, ((COMPUTE, 2.0, 0), (SEND, 3.0, 1)))]
    second = [(0, ((COMPUTE, 1.0, 0),)), (0, ((SEND, 3.0, 2),))]
    assert finish([gateway, first, second], 0.25) == 1 + 3 + 3 + 0.25 + 0.5
