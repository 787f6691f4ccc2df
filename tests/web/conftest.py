"""A folder as a run leaves it, made without a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from weft.fleet.fleet import Device, Fleet, Link
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.program.lower.lower import lower
from weft.program.timeline import Timeline
from weft.runtime.run.records.live import DeviceNow, LiveFile
from weft.simulate.simulate import simulate

FLEET = Fleet(
    (
        Device("pi", "device", gflops=0.9, memory_mb=1024, data=True),
        Device("nuc", "edge", gflops=7.5),
        Device("cloud", "cloud", gflops=60.0),
    ),
    (Link(("pi", "nuc"), 40.0, 40.0, 2.0), Link(("nuc", "cloud"), 20.0, 10.0, 5.0, 0.01)),
)


def times(speed: float) -> DeviceTimes:
    forward = tuple(t / speed for t in (0.004, 0.006, 0.003, 0.002))
    return DeviceTimes(
        forward, tuple(2 * t for t in forward), tuple(t / speed for t in (0.001,) * 4)
    )


@pytest.fixture(scope="session")
def plan() -> Plan:
    """What `chain` decides for four layers and three devices."""
    layers = tuple(
        LayerCost(f"conv{i}", 40_000, size, forward_flops=1e7, saved_bytes=size)
        for i, size in enumerate((20_000, 9_000, 4_000, 40))
    )
    devices = {"pi": times(1), "nuc": times(8), "cloud": times(60)}
    task = make_task(Profile("small", 12_288, layers, devices), FLEET, batch=32)
    return decide("chain", task)


def live_file(plan: Plan, state: str = "runs", **changes: object) -> LiveFile:
    """Where a run of this plan stands after six minibatches; the cloud machine is lost."""
    devices = {
        "pi": DeviceNow("works", 5, 1.5, 0.25), "nuc": DeviceNow("works", 5), "cloud": DeviceNow("lost"),
    }  # fmt: skip
    timeline = simulate(lower(plan), 8)
    live = LiveFile(state, 40, FLEET, devices, 3.5, plan.strategy, recent=timeline)  # type: ignore[arg-type]
    return msgspec.structs.replace(live, **changes)


def write(path: Path, plan: Plan, live: LiveFile | None) -> Path:
    """A run's folder."""
    path.mkdir(parents=True, exist_ok=True)
    plan.save(path / "plan.json")
    rows: list[dict[str, object]] = [{"step": n, "loss": 2.0 - n / 10, "lr": 0.1} for n in range(6)]
    rows.append({"step": 5, "evaluated": {"loss": 1.4, "accuracy": 0.5}})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    events = [
        {"step": 4, "kind": "device_lost", "at_s": 2.0, "device": "cloud", "why": "cloud is gone"},
        {"step": 3, "kind": "recovered", "at_s": 2.5, "repeated": 1, "seconds": 0.4},
    ]
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if live is not None:
        (path / "live.json").write_bytes(msgspec.json.encode(live))
    return path


@pytest.fixture
def make_folder(plan: Plan, tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "runs/first", state: str | None = "runs", **changes: object) -> Path:
        live = live_file(plan, state, **changes) if state else None
        return write(tmp_path / name, plan, live)

    return make


@pytest.fixture
def timeline(plan: Plan) -> Timeline:
    return simulate(lower(plan), 8)
