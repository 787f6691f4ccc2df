"""A run writes down every change of plan, and another run repeats them: the same bits."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import weft
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.plans.plan import Plan, Shard
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.runtime.run.records.plan_changes import PlanChange, PlanRecord
from weft.simulate.price import priced

FLEET = Fleet(
    (Device("phone", gflops=50.0, data=True), Device("edge", "edge", gflops=50.0)),
    (Link(("phone", "edge"), 1000.0, 1000.0, 0.1),),
)
TIMES = DeviceTimes((1e-6,) * 3, (2e-6,) * 3, (1e-6,) * 3)
PROFILE = Profile("mine", 80, tuple(LayerCost(f"l{n}", 100, 64) for n in range(3)),
                  {"phone": TIMES, "edge": TIMES})  # fmt: skip


def plan(cut: int, pieces: int = 1) -> Plan:
    shards = (Shard("phone", (0, cut - 1)), Shard("edge", (cut, 2)))
    if cut == 3:
        shards = shards[:1]
    return priced(Plan(strategy="chain", model="mine", batch=8, mode="train", shards=shards, source="phone",
                       fleet=FLEET, profile=PROFILE, micro_batches=pieces, in_flight=pieces))  # fmt: skip


def trained(out: Path, record: Path, resume: bool = False, steps: int = 24) -> weft.TrainResult:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )
    x = torch.randn(64, 20, generator=torch.Generator().manual_seed(2))
    data = [(x[n], n % 4) for n in range(64)]
    loader = torch.utils.data.DataLoader(data, batch_size=8)  # type: ignore[arg-type]
    return weft.train(model, loader, nn.CrossEntropyLoss(), steps=steps, seed=3, local=True, lr=0.1,
                      replay=record, out=out, resume=resume)  # fmt: skip


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three changes: another cut, pieces, one place."""
    changes = (PlanChange(5, plan(1)), PlanChange(6, plan(2, pieces=4)), PlanChange(17, plan(3)))
    path = tmp_path_factory.mktemp("script") / "changes.json"
    path.write_bytes(msgspec.json.encode(PlanRecord(plan(2), changes)))
    return path


@pytest.mark.proof
def test_a_replay_changes_plans_at_the_same_minibatches_and_gives_the_same_bits(
    script: Path, tmp_path: Path
) -> None:
    first = trained(tmp_path / "first", script)
    changes = [e for e in first.events if e["kind"] in ("replanned", "worker_changed")]
    assert [event["step"] for event in changes] == [5, 6, 17]
    again = trained(tmp_path / "again", tmp_path / "first")
    assert again.losses == first.losses
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)
    records = [PlanRecord.load(tmp_path / name) for name in ("first", "again")]
    for record in records:
        assert [c.step for c in record.changes] == [5, 6, 17]
        assert [c.plan.shards for c in record.changes] == [
            plan(1).shards,
            plan(2).shards,
            plan(3).shards,
        ]
    assert records[0].first.shards == plan(2).shards


def test_what_was_done_again_after_a_loss_counts_under_the_later_plan() -> None:
    changes = (PlanChange(5, plan(1)), PlanChange(9, plan(2)), PlanChange(7, plan(3)))
    assert [c.step for c in PlanRecord(plan(2), changes).lasting] == [5, 7]


def test_a_resumed_run_goes_on_with_the_record_of_the_run_before() -> None:
    before = PlanRecord(plan(2), (PlanChange(5, plan(1)), PlanChange(9, plan(2))))
    record = before.resumed(7, PlanRecord(plan(3), (PlanChange(11, plan(1)),)))
    assert [c.step for c in record.changes] == [5, 7, 11]
    assert record.changes[1].plan == plan(3)
    assert record.first == before.first


def test_a_record_that_is_none_or_not_alone_is_refused(tmp_path: Path, script: Path) -> None:
    model, loss = nn.Linear(2, 2), nn.CrossEntropyLoss()
    with pytest.raises(InputError, match="No such file"):
        weft.train(model, "mnist5k", loss, replay=tmp_path, local=True)
    (tmp_path / "changes.json").write_text('{"first": 1}')
    with pytest.raises(InputError, match="not a record of plans"):
        weft.train(model, "mnist5k", loss, replay=tmp_path, local=True)
    with pytest.raises(InputError, match="its own plan and fleet"):
        weft.train(model, "mnist5k", loss, replay=script, fleet=FLEET, local=True)
    with pytest.raises(InputError, match="leave --adapt out"):
        weft.train(model, "mnist5k", loss, replay=script, adapt=True, local=True)
