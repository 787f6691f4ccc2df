"""`weft.train` and `weft.serve` from Python: any form of data, folders, resuming."""

from __future__ import annotations

import copy
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import weft
from weft.data import Dataset, batch_indices
from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.plan import Plan
from weft.program.timeline import Timeline
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.records.record import Folder

X, Y = torch.randn(60, 20, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 10
FILES = ["changes.json", "events.jsonl", "live.json", "metrics.jsonl", "optimizer.safetensors",
         "plan.json", "run.json", "saves", "timeline.json", "weights.safetensors"]  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 10))


def minibatch(step: int, batch: int = 12, seed: int = 3) -> tuple[Tensor, Tensor]:
    index = batch_indices(len(X), batch, step, seed)
    return X[index], Y[index]


def alone(steps: int, rule: Optimizer) -> dict[str, Tensor]:
    module = network()
    optimizer = rule.build(list(module.parameters()))
    for step in range(steps):
        x, y = minibatch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return {n: t.detach() for n, t in module.state_dict().items()}


def same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance)


@pytest.fixture
def train(nodes: LocalFleet, triangle: Fleet) -> Callable[..., Any]:
    """weft.train on the shared nodes, split over two of them."""

    def run(data: Any, **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "fleet": triangle, "strategy": "chain", "steps": 8, "batch": 12, "seed": 3,
            "options": {"devices": "pi,nuc", "micro_batches": 1},
            "join": nodes.endpoint, "group": nodes.group, "measure": False, "adapt": False,
            **changes,
        }  # fmt: skip
        return weft.train(
            settings.pop("model", None) or network(), data, nn.CrossEntropyLoss(), **settings
        )

    return run


@pytest.mark.parametrize(
    "data",
    [(X, Y), minibatch, Dataset("own", X, Y, X[:30], Y[:30], 10)],
    ids=["tensors", "function", "dataset"],
)
def test_any_form_of_data_trains_as_one_process_would(train: Callable[..., Any], data: Any) -> None:
    told: list[Any] = []
    result = train(data, on_progress=told.append)
    same(dict(result.model.state_dict()), alone(8, Optimizer("sgd", 0.05)))
    assert (result.steps, len(result.losses)) == (8, 8)
    assert result.plan.devices == ("pi", "nuc")
    assert told[-1].done == 8
    assert (result.test_accuracy is not None) == isinstance(data, Dataset)
    assert result.step_s > 0


def test_the_result_is_the_users_own_module(train: Callable[..., Any]) -> None:
    module = network()
    result = train((X, Y), model=module)
    assert result.model is module
    assert module(X).shape == (60, 10)


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    rule = Optimizer("adam", 0.01)
    out = tmp_path / "run"
    train((X, Y), steps=5, optimizer=rule, out=out)
    assert sorted(p.name for p in out.iterdir()) == FILES
    result = train((X, Y), steps=9, optimizer=rule, out=out, resume=True)
    same(dict(result.model.state_dict()), alone(9, rule))
    same(load_file(out / "weights.safetensors"), alone(9, rule))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(9))
    assert Plan.load(out / "plan.json").devices == ("pi", "nuc")
    assert Timeline.load(out / "timeline.json").source == "measured"
    with pytest.raises(InputError, match=r"has done 9 steps.*nothing to do"):
        train((X, Y), steps=9, optimizer=rule, out=out, resume=True)
    with pytest.raises(InputError, match="another network"):
        train((X, Y), steps=20, model=nn.Linear(20, 10), out=out, resume=True,
              options={"devices": "pi"})  # fmt: skip
    again = train((X, Y), steps=2, optimizer=rule, out=out)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == again.steps == 2


def test_a_folder_is_resumed_only_by_a_run_like_the_one_that_made_it(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train((X, Y), steps=2, out=out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    wider = nn.Sequential(nn.Linear(20, 17), nn.ReLU(), nn.Linear(17, 10))
    for changes, says in (
        ({"strategy": "all-edge", "options": {}}, "strategy chain, .* strategy all-edge"),
        ({"batch": 6}, "batch 12, .* batch 6; give --batch 12"),
        ({"seed": 4}, "seed 3, .* seed 4"),
        ({"model": wider}, r"another network: 0.bias is torch.float32 \[16\] there"),
    ):
        with pytest.raises(InputError, match=says):
            train((X, Y), steps=9, out=out, resume=True, **changes)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write to --out .*Not a directory"):
        train((X, Y), steps=2, out=tmp_path / "file" / "run")


def test_a_run_whose_disk_is_full_goes_on_says_so_and_loses_nothing_older(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    rule, out = Optimizer("adam", 0.01), tmp_path / "run"
    train((X, Y), steps=5, optimizer=rule, out=out)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(_: object) -> None:
        """From now on the system takes no file of more than 100 bytes from this process."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))

    try:
        full = train((X, Y), steps=9, optimizer=rule, out=out, resume=True, save_every=1,
                     on_progress=fill)  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    same(dict(full.model.state_dict()), alone(9, rule))
    events = [event for event in full.events if event["kind"] == "not_saved"]
    assert {event["what"] for event in events} >= {"weights", "plan", "timeline"}
    assert all("File too large" in event["why"] for event in events)
    assert full.unsaved.startswith("weights of minibatch 9 not written to")
    assert 5 <= Folder(out).load().run.steps < 9
    result = train((X, Y), steps=9, optimizer=rule, out=out, resume=True)
    same(dict(result.model.state_dict()), alone(9, rule))
    assert (result.events, result.unsaved) == ([], "")
    os.truncate(Folder(out).saves.all()[-1] / "weights.safetensors", 100)
    result = train((X, Y), steps=9, optimizer=rule, out=out, resume=True)
    same(dict(result.model.state_dict()), alone(9, rule))
    assert [event["kind"] for event in result.events] == ["older_save_taken"]
    assert "weights.safetensors has 100 bytes" in result.events[0]["why"]
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(9))


def test_saving_on_the_way_changes_nothing(train: Callable[..., Any], tmp_path: Path) -> None:
    rule = Optimizer("momentum", 0.02)
    result = train((X, Y), steps=7, optimizer=rule, out=tmp_path / "run", save_every=3)
    same(dict(result.model.state_dict()), alone(7, rule))
    assert len(result.losses) == 7


class Spare(nn.Module):
    """Has a parameter that forward never reads."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(20, 10), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.used(x)
        return result


def test_a_parameter_that_nobody_reads_is_kept_and_can_be_resumed(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    module, only = Spare(), {"devices": "pi"}
    before = module.spare.weight.detach().clone()
    train((X, Y), model=module, steps=2, out=tmp_path, options=only)
    assert set(load_file(tmp_path / "weights.safetensors")) == set(module.state_dict())
    train((X, Y), model=module, steps=3, out=tmp_path, options=only, resume=True)
    assert torch.equal(module.spare.weight, before)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": 0}, "steps 0"),
        ({"batch": 0}, "batch 0"),
        ({"deadline": 0.0}, "deadline"),
        ({"optimizer": "sgdd"}, "sgd, momentum, adam, adamw"),
        ({"lr": -1.0}, "learning rate"),
        ({"local": True}, "exclude each other"),
        ({"resume": True}, "--out"),
        ({"fleet": None}, "needs a fleet or a plan"),
    ],
)
def test_wrong_use_is_refused_before_anything_starts(
    train: Callable[..., Any], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        train((X, Y), **changes)


def test_data_that_cannot_be_right_is_refused(train: Callable[..., Any]) -> None:
    for data, says in (
        ((X, Y[:5]), "60 samples but 5 targets"),
        (17, "a set's name"),
        (lambda step: (X[:5], Y[:5]), "minibatch 0 has 5 samples"),
        ("no-such-set", "no-such-set"),
    ):
        with pytest.raises(InputError, match=says):
            train(data)


def test_a_served_network_answers_like_the_module(nodes: LocalFleet, triangle: Fleet) -> None:
    module = network().eval()
    with weft.serve(
        module, X[:4], triangle, strategy="chain", join=nodes.endpoint, group=nodes.group,
        options={"devices": "pi,nuc"}, measure=False,
    ) as net:  # fmt: skip
        for first in (0, 4, 8):
            with torch.no_grad():
                expected = module(X[first : first + 4])
            answer = net(X[first : first + 4])
            torch.testing.assert_close(answer, expected, rtol=0, atol=1e-5)
            answer.zero_()  # the answer is the user's own
        stream = net.stream([X[:4], X[4:8]])
        torch.testing.assert_close(torch.cat(stream), module(X[:8]).detach(), rtol=0, atol=1e-5)
        with pytest.raises(InputError, match="5 samples given, but the plan is for batch 4"):
            net(X[:5])


def test_a_plan_is_carried_out_as_it_is_on_an_emulated_fleet(triangle: Fleet) -> None:
    """The road of the documentation: plan, print, train with local=True, serve the result."""
    module = network()
    plan = weft.plan(module, X[:2], triangle, strategy="all-edge", batch=12, mode="train")
    assert "nuc" in str(plan)
    before = copy.deepcopy(module.state_dict())
    result = weft.train(
        module, (X, Y), nn.CrossEntropyLoss(), plan=plan, steps=8, seed=3, local=True
    )
    assert not torch.equal(before["0.weight"], module.state_dict()["0.weight"])
    same(dict(result.model.state_dict()), alone(8, Optimizer("sgd", 0.05)))
    assert result.plan.devices == ("pi", "nuc")
    with pytest.raises(InputError, match="batch 12"):
        weft.train(module, (X, Y), nn.CrossEntropyLoss(), plan=plan, batch=6, local=True)


def test_a_device_that_is_quicker_than_its_reports_gets_its_samples(
    train: Callable[..., Any],
) -> None:
    """It did the 256 minibatches that it had been sent within a tenth of a second, before it said so again,
    and then waited for samples that nobody knew it needed."""
    result = train((X, Y), steps=1500, options={"devices": "pi"})
    assert len(result.losses) == 1500
