"""Several devices with data of their own: trained together, they equal one process on the joint batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

import weft
from weft.data import batch_indices, load
from weft.data.batches import joint_indices
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.fleet.owners import Owner
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.plan import Part, Plan, Shard

Subject = Any
RunPlan = Callable[..., Any]
STEPS, BATCH = 12, 12
SGD = Optimizer("sgd", 0.05)
OWNERS = (Owner("pi", 7), Owner("nuc", 5))
FLEET = Fleet(
    (
        Device("pi1", gflops=1.0, data=True, samples=300),
        Device("pi2", gflops=0.5, data=True, samples=100),
        Device("nuc", "edge", gflops=4.0),
        Device("cloud", "cloud", gflops=20.0),
    ),
    (
        Link(("pi1", "nuc"), 50, 50),
        Link(("pi2", "nuc"), 20, 20),
        Link(("nuc", "cloud"), 30, 30),
    ),
)


@pytest.fixture(scope="module")
def dense(make_subject: Callable[..., Subject]) -> Subject:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in pairwise((20, 24, 16, 18, 10)):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return make_subject(nn.Sequential(*layers[:-1]), (20,), BATCH)


def alone(
    module: nn.Module, data: Callable[[int], tuple[Tensor, Tensor]], steps: int
) -> dict[str, Tensor]:
    """Plain training in this process."""
    module = copy.deepcopy(module).train()
    optimizer = SGD.build(list(module.parameters()))
    for step in range(steps):
        x, y = data(step)
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(x), y))
        optimizer.step()
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


def far(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert set(found) == set(expected)
    return max(float((found[n].double() - t.double()).abs().max()) for n, t in expected.items())


def shard(device: str, layers: tuple[int, int], samples: int, offset: int) -> Shard:
    return Shard(device, layers, Part(samples, offset))


# pi has samples 0 to 6, nuc 7 to 11.
PLANS: dict[str, tuple[Shard, ...]] = {
    "each begins with its own": (
        shard("pi", (0, 1), 7, 0), shard("cloud", (2, 3), 7, 0),
        shard("nuc", (0, 2), 5, 7), shard("cloud", (3, 3), 5, 7),
    ),
    "nobody with data computes": (shard("cloud", (0, 3), 7, 0), shard("cloud", (0, 3), 5, 7)),
    "one of them computes for both": (
        shard("nuc", (0, 3), 4, 0), shard("cloud", (0, 3), 3, 4), shard("nuc", (0, 3), 5, 7),
    ),
    "samples cross over": (
        shard("nuc", (0, 0), 7, 0), shard("pi", (1, 3), 7, 0),
        shard("pi", (0, 2), 5, 7), shard("nuc", (3, 3), 5, 7),
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", ["staged", "eager"])
@pytest.mark.parametrize("name", PLANS)
def test_two_devices_with_data_train_what_one_process_trains(
    name: str, how: str, dense: Subject, run_plan: RunPlan
) -> None:
    fields: dict[str, Any] = {"schedule": how, "ahead": 2, "owners": OWNERS}
    if how == "eager":
        fields |= {"micro_batches": 4, "stream": True}
    plan = msgspec.structs.replace(dense.plan(**fields), shards=PLANS[name])
    ran = run_plan(dense, plan, STEPS, optimizer=SGD)
    assert far(ran.state, alone(dense.module, dense.data, STEPS)) <= 1e-5


def test_a_lane_with_samples_of_two_devices_is_refused(dense: Subject, run_plan: RunPlan) -> None:
    plan = msgspec.structs.replace(
        dense.plan(owners=OWNERS),
        shards=(shard("cloud", (0, 3), 9, 0), shard("cloud", (0, 3), 3, 9)),
    )
    with pytest.raises(InputError, match="samples 0 to 9 lie on pi and nuc"):
        run_plan(dense, plan, 1)


def small_data(seed: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 20, generator=generator), torch.arange(count) % 10


def test_hiertrain_plus_on_four_processes_equals_one_process_on_the_joint_batch(
    dense: Subject,
) -> None:
    """Data by device: three quarters of each minibatch come from the first, as `samples` says."""
    data = {"pi1": small_data(1, 90), "pi2": small_data(2, 30)}

    def joint(step: int) -> tuple[Tensor, Tensor]:
        parts = []
        for name, count in (("pi1", 9), ("pi2", 3)):
            x, y = data[name]
            index = batch_indices(len(x), count, step, 5)
            parts.append((x[index], y[index]))
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    module = copy.deepcopy(dense.module)
    expected = alone(module, joint, STEPS)
    result = weft.train(
        module, data, nn.CrossEntropyLoss(), fleet=FLEET, strategy="hiertrain+", steps=STEPS,
        batch=BATCH, optimizer=SGD, seed=5, local=True, options={"codecs": "none"}, adapt=False,
    )  # fmt: skip
    found = {name: tensor.detach() for name, tensor in result.model.state_dict().items()}
    assert far(found, expected) <= 1e-5


def test_a_set_that_devices_open_themselves_is_divided_among_them() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
    digits = load("digits")

    def joint(step: int) -> tuple[Tensor, Tensor]:
        index = joint_indices(len(digits.train_x), (9, 3), step, 5)
        return digits.train_x[index], digits.train_y[index]

    expected = alone(module, joint, 6)
    result = weft.train(
        module, "digits", nn.CrossEntropyLoss(), fleet=FLEET, strategy="all-edge", steps=6,
        batch=BATCH, optimizer=SGD, seed=5, local=True, adapt=False,
    )  # fmt: skip
    found = {name: tensor.detach() for name, tensor in result.model.state_dict().items()}
    assert far(found, expected) <= 1e-5


def test_data_for_other_devices_than_the_fleet_says_is_refused(dense: Subject) -> None:
    with pytest.raises(InputError, match=r"given for pi1; .* data = true at pi1, pi2"):
        weft.train(
            dense.module, {"pi1": small_data(1, 90)}, nn.CrossEntropyLoss(), fleet=FLEET,
            strategy="hiertrain+", steps=1, batch=BATCH, local=True,
        )  # fmt: skip


def test_when_one_of_several_devices_with_data_is_gone_the_run_cannot_go_on(dense: Subject) -> None:
    """Its samples are gone with it: another batch would be trained."""
    from weft.errors import LostDevice
    from weft.runtime.run.advice import Nobody

    class Running:
        plan: Plan = msgspec.structs.replace(
            dense.plan(owners=OWNERS), shards=PLANS["samples cross over"]
        )

    with pytest.raises(LostDevice):
        Nobody().blame(Running(), LostDevice("nuc", "gone"))  # type: ignore[arg-type]
    assert Nobody().blame(Running(), LostDevice("cloud", "gone")) == "cloud"  # type: ignore[arg-type]
