"""Swarms and peers write down which plan ran after a loss. It can be repeated and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft import zoo
from weft.chaos.fleets import HOME, SWARM
from weft.fleet.faults import Faults
from weft.runtime.run.records.plan_changes import PlanRecord
from weft.runtime.run.results import TrainResult

X = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(64) % 4
STEPS = 80


def pairs(step: int) -> tuple[Tensor, Tensor]:
    rows = torch.arange(step * 8, step * 8 + 8) % 64
    return X[rows], Y[rows]


KEPT: dict[str, Any] = {"batch": 8, "local": True, "deadline": 60.0, "patience": 5.0}


def peers(out: Path, fleet: bool = True, steps: int = STEPS, **more: Any) -> TrainResult:
    """Three peers with the same network."""
    torch.manual_seed(1)
    if fleet:
        more |= {"fleet": HOME, "strategy": "fedavg"}
    return weft.train(zoo.build("cnn5", (1, 8, 8), 10), "digits", nn.CrossEntropyLoss(), steps=steps,
                      options={"steps": "5"}, out=out, **KEPT, **more)  # fmt: skip


def swarm(out: Path, fleet: bool = True, steps: int = STEPS, **more: Any) -> TrainResult:
    """Five devices with some units each."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(),
                          nn.Linear(16, 4))  # fmt: skip
    if fleet:
        more |= {"fleet": SWARM, "strategy": "stitchnet"}
    return weft.train(model, pairs, nn.CrossEntropyLoss(), steps=steps, optimizer="momentum", lr=0.01,
                      options={"every": "2"}, out=out, **KEPT, **more)  # fmt: skip


def computing(plan: weft.Plan) -> set[str]:
    return {shard.device for shard in plan.shards}


def changes(folder: Path) -> list[tuple[int, set[str]]]:
    """From which minibatch on which devices computed, as the folder has it."""
    return [(change.step, computing(change.plan)) for change in PlanRecord.load(folder).lasting]


@pytest.mark.proof
def test_peers_write_down_who_was_left_out_and_taken_back_and_another_run_repeats_it(
    tmp_path: Path,
) -> None:
    script = Faults().kill("laptop", step=12).restart("laptop", after_s=0.5)
    first = peers(tmp_path / "first", faults=script)
    assert "device_joined" in [event["kind"] for event in first.events]
    record = PlanRecord.load(tmp_path / "first")
    assert "laptop" in record.changes[0].why
    written = [computing(change.plan) for change in record.changes]
    assert {"desk", "tablet"} in written
    assert written[-1] == {"desk", "laptop", "tablet"}
    assert [c.step for c in record.changes] == sorted(c.step for c in record.changes)

    again = peers(tmp_path / "again", fleet=False, replay=tmp_path / "first")
    repeated = changes(tmp_path / "again")
    assert [change for change in changes(tmp_path / "first") if change not in repeated] == []
    assert len(again.losses) == STEPS
    assert "advice_failed" not in [event["kind"] for event in again.events]


def test_peers_are_resumed_after_one_was_left_out(tmp_path: Path) -> None:
    """The run that goes on has all peers again, and the record has what was before."""
    peers(tmp_path, steps=40, faults=Faults().kill("laptop", step=12))
    before = changes(tmp_path)
    assert {"desk", "tablet"} in [devices for _, devices in before]
    resumed = peers(tmp_path, resume=True)
    assert resumed.first == 40
    assert set(resumed.done) == {"desk", "laptop", "tablet"}
    assert changes(tmp_path)[: len(before) + 1] == [*before, (40, {"desk", "laptop", "tablet"})]


@pytest.mark.proof
def test_a_swarm_writes_down_the_plan_with_clones_and_another_run_repeats_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "first"
    first = swarm(folder, steps=40, faults=Faults().kill("n2", step=12))
    record = PlanRecord.load(folder)
    assert "n2" in computing(record.first)
    assert "n2" not in computing(record.changes[-1].plan)
    assert record.changes[-1].plan.shards == first.plan.shards
    before = changes(folder)

    again = swarm(tmp_path / "again", fleet=False, steps=40, replay=folder)
    assert again.plan.shards == first.plan.shards
    assert changes(tmp_path / "again") == before
    assert len(again.losses) == 40
    for name, tensor in again.model.state_dict().items():
        assert tensor.isfinite().all(), name

    resumed = swarm(folder, resume=True)
    assert resumed.first == 40
    assert changes(folder)[: len(before) + 1] == [*before, (40, computing(record.first))]
