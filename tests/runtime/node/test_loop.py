"""The training loop split over three devices computes what a plain PyTorch loop computes.

The program is executed in one process, by the nodes' interpreter. The loop that it must equal is `alone`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from weft.errors import InputError, WeftError
from weft.graph.optimizers.optimizer import Optimizer, split_memory
from weft.graph.optimizers.user_optimizer import read_optimizer
from weft.graph.optimizers.user_schedule import Timetable
from weft.graph.optimizers.words import slots_of
from weft.loom.woven import Executed, execute
from weft.plans.plan import Part, Plan, Shard
from weft.program.instructions import Clip
from weft.program.lower.lower import lower
from weft.program.program import Program
from weft.program.validate import validate
from weft.simulate.price import price

Subject = Any
STEPS, BATCH = 6, 6
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True, betas=(0.8, 0.95)),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adagrad": partial(torch.optim.Adagrad, lr=0.02, lr_decay=0.1),
    "adadelta": partial(torch.optim.Adadelta, rho=0.8),
    "adamax": partial(torch.optim.Adamax, lr=0.01),
    "nadam": partial(torch.optim.NAdam, lr=0.01),
    "radam": partial(torch.optim.RAdam, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "rprop": partial(torch.optim.Rprop, lr=0.01),
    "asgd": partial(torch.optim.ASGD, lr=0.02, t0=2),
    "adafactor": partial(torch.optim.Adafactor, lr=0.02),
}


@dataclass(frozen=True)
class Alone:
    """The result of the plain loop."""

    state: dict[str, Tensor]
    losses: list[float]
    averaged: Mapping[str, Tensor]


def alone(
    module: nn.Module,
    data: Callable[[int], tuple[Tensor, Tensor]],
    make: Callable[[nn.Module], torch.optim.Optimizer],
    steps: int = STEPS,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
    clip_value: float = 0.0,
    clip_norm: float = 0.0,
    accumulate: int = 1,
    ema: float = 0.0,
) -> Alone:
    """A training loop as people write it."""
    module = copy.deepcopy(module).train()
    optimizer, loss_function, losses = make(module), nn.CrossEntropyLoss(), []
    scheduler = schedule(optimizer) if schedule else None
    means = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(ema)) if ema else None
    for step in range(steps):
        x, y = data(step)
        loss = loss_function(module(x), y)
        losses.append(loss.item())
        (loss / accumulate).backward()
        if (step + 1) % accumulate == 0:
            if clip_value:
                nn.utils.clip_grad_value_(module.parameters(), clip_value)
            if clip_norm:
                nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            if means is not None:
                means.update_parameters(module)
        if scheduler is not None:
            scheduler.step()
    averaged = dict(means.module.named_parameters()) if means is not None else {}
    state = {n: t.detach() for n, t in module.state_dict().items()}
    return Alone(state, losses, {n: t.detach() for n, t in averaged.items()})


@pytest.fixture(scope="module")
def subject(make_subject: Callable[..., Subject]) -> Subject:
    """Smooth on purpose: at a kink a rounding error may decide which way a gradient goes."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 10)
    )
    return make_subject(module, (5,), BATCH)


def chain(subject: Subject, **fields: Any) -> Plan:
    """Three devices, one after the other, two pieces."""
    last = subject.last
    shards = (("pi", 0, 0), ("nuc", 1, last - 1), ("cloud", last, last))
    plan: Plan = subject.plan(*shards, micro_batches=2, **fields)
    return plan


def shares(subject: Subject, **fields: Any) -> Plan:
    """HierTrain's shape: three devices with samples of their own, which share the first layers."""
    last, plan = subject.last, subject.plan(**fields)
    shards = (
        Shard("pi", (0, 0), Part(2, 0)), Shard("cloud", (1, last), Part(2, 0)),
        Shard("cloud", (0, last), Part(3, 2)),
        Shard("nuc", (0, 1), Part(1, 5)), Shard("cloud", (2, last), Part(1, 5)),
    )  # fmt: skip
    return msgspec.structs.replace(plan, shards=shards)


def woven(
    subject: Subject,
    plan: Plan,
    rule: Optimizer,
    steps: int = STEPS,
    timetable: Timetable | None = None,
) -> Executed:
    program = lower(msgspec.structs.replace(plan, optimizer=rule.words))
    validate(program)
    state = subject.state()
    return execute(program, subject.graph, state, subject.data, steps, rule, timetable=timetable)


def check_equal(ran: Executed, expected: Alone, tolerance: float = 1e-5) -> None:
    assert (ran.unequal, ran.odd_bytes) == ([], [])
    off = {n: float((ran.state[n] - t).abs().max()) for n, t in expected.state.items()}
    assert max(off.values()) <= tolerance, off
    assert [ran.losses[n] for n in range(len(expected.losses))] == pytest.approx(
        expected.losses, abs=tolerance
    )


@pytest.mark.parametrize("split", [chain, shares])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_split_what_it_trains_alone(
    subject: Subject, name: str, split: Callable[..., Plan]
) -> None:
    make = OPTIMIZERS[name]
    rule = read_optimizer(make, subject.module)
    ran = woven(subject, split(subject), rule)
    check_equal(ran, alone(subject.module, subject.data, lambda net: make(net.parameters())))


def grouped(net: nn.Module) -> torch.optim.Optimizer:
    """Groups with settings of their own; the first layer is in none, so it is not trained."""
    parts = list(net.children())
    return torch.optim.AdamW(
        [
            {"params": parts[2].parameters(), "weight_decay": 0.0},
            {"params": parts[3].parameters(), "lr": 0.02, "betas": (0.7, 0.9)},
            {"params": parts[5].parameters()},
        ],
        lr=0.01,
        weight_decay=0.1,
    )


@pytest.mark.parametrize("split", [chain, shares])
def test_groups_of_an_optimizer_hold_on_every_device(
    subject: Subject, split: Callable[..., Plan]
) -> None:
    rule = read_optimizer(grouped(subject.module), subject.module)
    ran = woven(subject, split(subject), rule)
    expected = alone(subject.module, subject.data, grouped)
    check_equal(ran, expected)
    assert torch.equal(ran.state["0.weight"], subject.module.state_dict()["0.weight"])


def test_no_decay_spares_norms_and_biases(subject: Subject) -> None:
    def spared(net: nn.Module) -> torch.optim.Optimizer:
        large = [p for p in net.parameters() if p.dim() > 1]
        vectors = [p for p in net.parameters() if p.dim() <= 1]
        groups = [{"params": large}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.SGD(groups, lr=0.05, weight_decay=0.5)

    rule = read_optimizer(
        "sgd", subject.module, lr=0.05, arguments={"weight_decay": 0.5}, no_decay=True
    )
    check_equal(woven(subject, chain(subject), rule), alone(subject.module, subject.data, spared))
    with_decay = read_optimizer("sgd", subject.module, lr=0.05, arguments={"weight_decay": 0.5})
    other = woven(subject, chain(subject), with_decay)
    assert not torch.allclose(other.state["2.weight"], 0 * other.state["2.weight"] + 1, atol=1e-3)


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=STEPS),
    "onecycle": partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=STEPS),
    "step": partial(lr_scheduler.StepLR, step_size=2, gamma=0.3),
    "in turn": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.25, total_iters=3),
            lr_scheduler.ExponentialLR(optimizer, 0.5),
        ],
        milestones=[3],
    ),
    "by group": lambda optimizer: lr_scheduler.LambdaLR(
        optimizer, [lambda n: 1 / (n + 1), lambda n: 0.9**n, lambda n: float(n % 2)]
    ),
}


@pytest.mark.parametrize("split", [chain, shares])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.*")
def test_a_schedule_gives_every_device_the_settings_of_one_process(
    subject: Subject, name: str, split: Callable[..., Plan]
) -> None:
    """One cycle also changes the betas; a schedule by group has a rate for each."""
    make = grouped if name == "by group" else lambda net: torch.optim.Adam(net.parameters(), 0.01)
    rule = read_optimizer(make(subject.module), subject.module)
    timetable = Timetable(rule, SCHEDULES[name], steps=STEPS)
    ran = woven(subject, split(subject), rule, timetable=timetable)
    check_equal(ran, alone(subject.module, subject.data, make, schedule=SCHEDULES[name]))


@pytest.mark.parametrize("split", [chain, shares])
def test_clipped_values_and_running_means_equal_one_process(
    subject: Subject, split: Callable[..., Plan]
) -> None:
    rule = read_optimizer("adam", subject.module, lr=0.01, clip_value=0.01, ema=0.7)
    ran = woven(subject, split(subject), rule)
    expected = alone(
        subject.module, subject.data, lambda net: torch.optim.Adam(net.parameters(), 0.01),
        clip_value=0.01, ema=0.7,
    )  # fmt: skip
    check_equal(ran, expected)
    means, _ = split_memory(ran.memory)
    assert {n: float((means[n] - t).abs().max()) < 1e-5 for n, t in expected.averaged.items()} == (
        dict.fromkeys(means, True)
    )
    assert rule.words == "adam ema"


def whole(subject: Subject, **fields: Any) -> Plan:
    """One device with all layers, three pieces."""
    plan: Plan = subject.plan(("pi", 0, subject.last), micro_batches=3, **fields)
    return plan


@pytest.mark.parametrize("split", [chain, shares, whole])
@pytest.mark.parametrize("limit", [0.05, 100.0])
def test_the_norm_of_all_gradients_is_that_of_one_process(
    subject: Subject, split: Callable[..., Plan], limit: float
) -> None:
    """Layers that several devices hold count once; pieces of a minibatch are added up before."""
    rule = read_optimizer("momentum", subject.module, lr=0.1, clip_norm=limit)
    expected = alone(
        subject.module, subject.data,
        lambda net: torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), clip_norm=limit,
    )  # fmt: skip
    check_equal(woven(subject, split(subject), rule), expected)


def test_the_sum_of_the_norm_is_priced_and_validated(subject: Subject) -> None:
    plan = chain(subject)
    clipped = msgspec.structs.replace(plan, optimizer="sgd clip")
    assert price(clipped).step_s > price(plan).step_s  # type: ignore[operator]
    crossing = price(plan).transfer_bytes
    extra = [size - crossing.get(c, 0) for c, size in price(clipped).transfer_bytes.items()]
    assert sum(extra) > 0
    program = lower(clipped)
    body = program.code["pi"]
    late = [i for i in body if isinstance(i, Clip)]
    code = {**program.code, "pi": tuple([*(i for i in body if i not in late), *late])}
    with pytest.raises(WeftError, match=r"pi: update of layers 0-0 .* before its input gnorm"):
        validate(Program(plan=clipped, code=code))


def test_plans_that_cannot_sum_the_norm_are_refused(subject: Subject) -> None:
    for fields, says in (
        ({"stale": 1}, "stale"),
        ({"standby": (Shard("pi", (subject.last, subject.last)),)}, "standby"),
    ):
        plan = chain(subject, optimizer="sgd clip", **fields)
        with pytest.raises(InputError, match=f"norm of all gradients.*{says}"):
            lower(plan)
    with pytest.raises(InputError, match="choose one"):
        read_optimizer("sgd", subject.module, clip_norm=1.0, clip_value=1.0)
    with pytest.raises(InputError, match="clip_norm 0"):
        read_optimizer("sgd", subject.module, clip_norm=0.0)


def test_the_memory_of_every_optimizer_is_counted(subject: Subject) -> None:
    """A plan's words say as many tensors per weight as the optimizer really keeps."""
    for name, make in OPTIMIZERS.items():
        rule = read_optimizer(make, subject.module)
        weight = torch.zeros(8, requires_grad=True)
        optimizer = rule.build([weight])
        weight.grad = torch.ones(8)
        optimizer.step()
        kept = [t for t in optimizer.state[weight].values() if isinstance(t, Tensor)]
        assert sum(t.numel() == 8 for t in kept) == slots_of(rule.words), name
