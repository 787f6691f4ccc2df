"""Batch norms that share their statistics: a split network equals one process on the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

import weft
from weft import zoo
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.fleet.owners import Owner
from weft.graph.norms import by_norms, synced_norms
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.derive import derive_profile
from weft.plans.plan import Part, Plan, Shard

Subject = Any
RunPlan = Callable[..., Any]
BATCH, STEPS = 12, 5
EQUAL = Fleet(
    (
        Device("pi", gflops=0.05, data=True),
        Device("nuc", "edge", gflops=0.05),
        Device("cloud", "cloud", gflops=0.05),
    ),
    (Link(("pi", "nuc"), 5000, 5000), Link(("nuc", "cloud"), 5000, 5000)),
)
SGD, MOMENTUM = Optimizer("sgd", 0.05), Optimizer("momentum", 0.02)


@pytest.fixture(scope="module")
def resnet(make_subject: Callable[..., Subject]) -> Subject:
    torch.manual_seed(0)
    subject = make_subject(zoo.build("resnet8", (1, 12, 12)), (1, 12, 12), BATCH)
    return type(subject)(subject.module, by_norms(subject.graph), BATCH, subject.shape)


@pytest.fixture(scope="module")
def dense(make_subject: Callable[..., Subject]) -> Subject:
    """A norm of the samples themselves, and norms of vectors; smooth."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.BatchNorm1d(20), nn.Linear(20, 24), nn.BatchNorm1d(24, momentum=0.3), nn.Tanh(),
        nn.Linear(24, 16), nn.BatchNorm1d(16, affine=False), nn.Tanh(), nn.Linear(16, 10),
    )  # fmt: skip
    subject = make_subject(net, (20,), BATCH)
    return type(subject)(subject.module, by_norms(subject.graph), BATCH, subject.shape)


def plan_of(subject: Subject, lanes: list[tuple[str, int, int]], o: str, **fields: Any) -> Plan:
    """Lanes of (device, its first layers, samples); o finishes them."""
    shards, offset, last = [], 0, subject.last
    for device, m, samples in lanes:
        part = Part(samples, offset)
        shards.append(Shard(device, (0, m - 1), part))
        if m <= last:
            shards.append(Shard(o, (m, last), part))
        offset += samples
    plan = subject.plan(layering="norms", norms=synced_norms(subject.graph), **fields)
    profile = derive_profile(subject.graph, plan.fleet)
    return msgspec.structs.replace(plan, shards=tuple(shards), profile=profile)


def alone(subject: Subject, rule: Optimizer, steps: int) -> dict[str, Tensor]:
    module = copy.deepcopy(subject.module).train()
    optimizer = rule.build(list(module.parameters()))
    for step in range(steps):
        x, y = subject.data(step)
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(x), y))
        optimizer.step()
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


def far(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert set(found) == set(expected)
    return max(float((found[n].double() - t.double()).abs().max()) for n, t in expected.items())


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize(
    ("o", "cuts"), [("cloud", (3, 6)), ("cloud", (4, 5)), ("nuc", (5, 5)), ("pi", (2, 9))]
)
def test_a_residual_network_split_by_samples_is_trained_as_by_one_process(
    o: str, cuts: tuple[int, int], pieces: int, resnet: Subject, run_plan: RunPlan
) -> None:
    """Weights, running statistics and the counter of batches."""
    s, l = (d for d in ("pi", "nuc", "cloud") if d != o)  # noqa: E741
    lanes = [(s, cuts[0], 5), (o, resnet.last + 1, 4), (l, cuts[1], 3)]
    plan = plan_of(resnet, lanes, o, micro_batches=pieces)
    ran = run_plan(resnet, plan, STEPS, optimizer=SGD)
    assert far(ran.state, alone(resnet, SGD, STEPS)) <= 1e-5


def test_a_norm_of_the_samples_and_one_without_weights(dense: Subject, run_plan: RunPlan) -> None:
    lanes = [("pi", 3, 1), ("cloud", dense.last + 1, 7), ("nuc", dense.last + 1, 4)]
    plan = plan_of(dense, lanes, "cloud")
    assert plan.norms[0][0] == 0
    ran = run_plan(dense, plan, 12, optimizer=MOMENTUM)
    assert far(ran.state, alone(dense, MOMENTUM, 12)) <= 1e-5


def test_several_devices_with_data_share_statistics_too(dense: Subject, run_plan: RunPlan) -> None:
    lanes = [("pi", 4, 7), ("nuc", 5, 5)]
    plan = plan_of(dense, lanes, "cloud", owners=(Owner("pi", 7), Owner("nuc", 5)))
    ran = run_plan(dense, plan, 12, optimizer=SGD)
    assert far(ran.state, alone(dense, SGD, 12)) <= 1e-5


@pytest.mark.parametrize("strategy", ["hiertrain", "hiertrain+"])
@pytest.mark.proof
def test_a_planned_residual_network_really_run_equals_one_process(
    strategy: str, resnet: Subject
) -> None:
    """Equal machines and fast links: the samples are split, and without sync_bn the result is another."""
    options = {"sync_bn": "yes", **({"codecs": "none"} if strategy == "hiertrain+" else {})}
    module = copy.deepcopy(resnet.module)
    expected = alone(resnet, SGD, 3)
    result = weft.train(
        module, resnet.data, nn.CrossEntropyLoss(), fleet=EQUAL, strategy=strategy, steps=3,
        batch=BATCH, optimizer=SGD, local=True, options=options, adapt=False,
    )  # fmt: skip
    assert len({shard.device for shard in result.plan.shards}) > 1
    assert result.plan.norms
    found = {name: tensor.detach() for name, tensor in result.model.state_dict().items()}
    assert far(found, expected) <= 1e-5


def test_a_profile_alone_cannot_be_synchronised(resnet: Subject) -> None:
    from weft.planning.task import make_task
    from weft.plans.registry import make_plan

    task = make_task(derive_profile(resnet.graph, EQUAL), EQUAL, options={"sync_bn": "yes"})
    for strategy in ("hiertrain", "hiertrain+"):
        with pytest.raises(InputError, match="needs the network itself"):
            make_plan(strategy, task)


def test_every_candidate_of_the_plus_has_the_same_layers(resnet: Subject) -> None:
    """A run that began with whole layers may go on with a split when a device is lost, and back."""
    from weft.planning.task import make_task
    from weft.plans.registry import make_plan

    slow = msgspec.structs.replace(EQUAL, link=(Link(("pi", "nuc"), 0.1, 0.1), EQUAL.link[1]))
    for fleet in (EQUAL, slow):
        task = make_task(
            derive_profile(resnet.graph, fleet), fleet, batch=BATCH, graph=resnet.graph,
            options={"sync_bn": "yes", "codecs": "none"},
        )  # fmt: skip
        plan = make_plan("hiertrain+", task)
        assert plan.layering == "norms"
        assert len(plan.profile.layers) == len(resnet.graph.layers)
