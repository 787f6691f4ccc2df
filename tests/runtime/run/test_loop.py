"""The training loop on three real nodes: a resumed run, and a run that loses a device."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import weft
from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.records.live import LiveFile

STEPS, BATCH, EMA, CLIP = 12, 8, 0.8, 0.5
SCHEDULE = partial(lr_scheduler.OneCycleLR, max_lr=0.05, total_steps=STEPS)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 12),
        nn.Tanh(),
        nn.LayerNorm(12),
        nn.Linear(12, 12),
        nn.Tanh(),
        nn.Linear(12, 4),
    )


def minibatch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 6, generator=generator), torch.arange(BATCH) % 4


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    vectors = [p for p in net.parameters() if p.dim() == 1]
    matrices = [p for p in net.parameters() if p.dim() > 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.02, weight_decay=0.3)


def alone() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights and their running means after a plain loop."""
    net = network()
    optimizer = optimizer_of(net)
    scheduler = SCHEDULE(optimizer)
    means = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(EMA))
    for step in range(STEPS):
        x, y = minibatch(step)
        nn.functional.cross_entropy(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        means.update_parameters(net)
        if step < STEPS - 1:
            scheduler.step()
    return net.state_dict(), means.module.state_dict()


def train(fleet: Fleet, nodes: LocalFleet, steps: int = STEPS, **changes: Any) -> Any:
    net = network()
    settings: dict[str, Any] = {
        "fleet": fleet, "strategy": "chain", "batch": BATCH, "ema": EMA, "schedule": SCHEDULE,
        "clip_norm": CLIP,
        "options": {"devices": "pi,nuc,cloud", "micro_batches": 2},
        "join": nodes.endpoint, "group": nodes.group, "optimizer": optimizer_of(net), **changes,
    }  # fmt: skip
    data = settings.pop("data", minibatch)
    return weft.train(net, data, nn.CrossEntropyLoss(), steps=steps, **settings)


def check_equal(result: Any) -> None:
    weights, means = alone()
    for net, expected in ((result.model, weights), (result.averaged, means)):
        for name, tensor in net.state_dict().items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-5)


@pytest.mark.proof
def test_a_resumed_run_goes_on_with_its_schedule_and_its_means(
    nodes: LocalFleet, triangle: Fleet, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(triangle, nodes, steps=5, out=out)
    with (out / "metrics.jsonl").open("a") as file:  # as of a run that ended after its last save
        file.write('{"step":5,"loss":9.0}\n{"st')
    rows: list[int] = []

    def progress(step: Any) -> None:
        rows.append(len((out / "metrics.jsonl").read_text().splitlines()))

    result = train(triangle, nodes, out=out, resume=True, on_progress=progress)
    check_equal(result)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert [msgspec.json.decode(line)["step"] for line in lines] == [*range(STEPS)]
    assert [msgspec.json.decode(line)["loss"] for line in lines[5:]] == result.losses
    assert rows == sorted(rows)
    assert rows[-1] > 5  # it grew while the run went on
    means = load_file(out / "ema.safetensors")
    assert all(torch.equal(means[n], t) for n, t in result.averaged.state_dict().items())
    with pytest.raises(InputError, match="optimizer adamw"):
        train(triangle, nodes, steps=20, out=out, resume=True, optimizer="sgd", schedule=None)


def test_a_run_that_loses_a_device_ends_with_the_weights_of_an_undisturbed_one(
    triangle: Fleet, tmp_path: Path
) -> None:
    """It goes back to a copy: the schedule goes back with it, and the means are part of the copy. The data
    is an iterator, which cannot go back: the minibatches that are repeated were kept. The folder tells it."""
    with LocalFleet(("pi", "nuc", "cloud")) as local:
        local.crew.wait_for(local.names, 180.0)
        killed: list[str] = []

        def progress(step: Any) -> None:
            if step.done >= 4 and not killed:
                killed.append("nuc")
                local.kill("nuc")

        data = iter([minibatch(n) for n in range(STEPS)])
        result = train(triangle, local, keep_every=2, on_progress=progress, data=data,
                       out=tmp_path)  # fmt: skip
    assert {"device_lost", "recovered"} & {event["kind"] for event in result.events}
    check_equal(result)
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line) for line in lines] == result.events
    live = msgspec.json.decode((tmp_path / "live.json").read_bytes(), type=LiveFile)
    assert (live.state, live.steps, live.fleet) == ("ended", STEPS, triangle)
    assert [live.devices[name].state for name in ("pi", "nuc")] == ["works", "lost"]
    rows = [msgspec.json.decode(line) for line in (tmp_path / "metrics.jsonl").open("rb")]
    assert {row["step"]: row["lr"] for row in rows} == result.learning_rates


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schedule": "plateau"}, "metric"),
        ({"schedule": partial(lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=3)}, "minibatch 4"),
        ({"warmup": 99}, "warmup 99"),
        ({"ema": 1.0}, "ema 1.0"),
        ({"clip_value": -1.0}, "clip_value -1.0"),
        ({"clip_norm": 1.0, "strategy": "edgemove", "options": {}}, "norm of all gradients"),
        ({"accumulate": 3}, "micro-batches, which is 2 already"),
        ({"accumulate": 9}, "accumulate 9 is not allowed; 1 to batch = 8"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    changes: dict[str, Any], says: str, nodes: LocalFleet, triangle: Fleet
) -> None:
    with pytest.raises(InputError, match=says):
        train(triangle, nodes, **changes)
