"""A scheduler becomes numbers for each minibatch, whatever is asked first, or is refused in words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from weft.errors import InputError
from weft.graph.optimizers.optimizer import Optimizer
from weft.graph.optimizers.schedule import Course, Rates
from weft.graph.optimizers.user_optimizer import read_optimizer
from weft.graph.optimizers.user_schedule import NAMES, Timetable, read_schedule

STEPS = 12
RULE = Optimizer("momentum", 0.1)
NEEDED: dict[str, dict[str, object]] = {
    "step": {"step_size": 3}, "multistep": {"milestones": (2, 5)}, "exponential": {"gamma": 0.9},
    "cosine-restarts": {"T_0": 4}, "cyclic": {"base_lr": 0.01, "step_size_up": 3},
}  # fmt: skip


def table(name: str, warmup: int = 0, **arguments: object) -> Timetable:
    make = read_schedule(
        name, steps=STEPS - warmup, lr=0.1, arguments={**NEEDED.get(name, {}), **arguments}
    )
    return Timetable(RULE, make, steps=STEPS, warmup=warmup)


def rates(timetable: Timetable) -> list[float]:
    """The learning rates as a device applies them."""
    known = Rates()
    known.take(timetable.between(0, STEPS), 0)
    optimizer = RULE.build([nn.Parameter(torch.zeros(1))])
    values = []
    for step in range(STEPS):
        known.apply(optimizer, step)
        values.append(optimizer.param_groups[0]["lr"])
    return values


@pytest.mark.parametrize("name", [n for n in NAMES if n != "plateau"])
def test_every_name_gives_the_numbers_of_its_class(name: str) -> None:
    optimizer = RULE.build([nn.Parameter(torch.zeros(1))])
    kind, defaults = NAMES[name]
    lengths: dict[str, object] = {"steps": STEPS, "lr": 0.1}
    filled = {k: lengths.get(v, v) if isinstance(v, str) else v for k, v in defaults.items()}
    scheduler = getattr(lr_scheduler, kind)(optimizer, **{**filled, **NEEDED.get(name, {})})
    expected = []
    for _ in range(STEPS):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(expected) < STEPS:
            scheduler.step()
    assert rates(table(name)) == pytest.approx(expected)
    assert len(set(expected)) > 1


def test_warm_up_rises_evenly_to_the_rate_and_the_schedule_follows() -> None:
    with_warmup = rates(table("cosine", warmup=4))
    assert with_warmup[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    optimizer = RULE.build([nn.Parameter(torch.zeros(1))])
    alone = Timetable(RULE, None, steps=STEPS, warmup=STEPS)
    assert rates(alone)[-1] == pytest.approx(0.1)
    plain = read_schedule("cosine", steps=STEPS - 4, lr=0.1)
    assert plain is not None
    scheduler = plain(optimizer)
    for expected in with_warmup[4:]:
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
        optimizer.step()
        scheduler.step()


def test_numbers_do_not_depend_on_what_was_asked_before() -> None:
    """A run that goes back asks for earlier minibatches again."""
    asked_in_pieces = table("onecycle")
    asked_in_pieces.between(4, 9)
    later = asked_in_pieces.between(2, STEPS)
    assert later == table("onecycle").between(2, STEPS)


def test_a_schedule_of_steps_is_sent_as_few_numbers() -> None:
    (course,) = table("step").between(0, STEPS)
    assert [step for step, _ in course.points] == [0, 3, 6, 9]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(course), type=Course) == course


def test_a_metric_changes_the_rate_from_its_minibatch_on_and_counts_once() -> None:
    timetable = table("plateau", factor=0.5, patience=0)
    assert timetable.looks
    for step, value in ((2, 1.0), (4, 2.0), (4, 3.0), (6, 0.5)):
        timetable.metric(step, value)
    assert rates(timetable) == [0.1] * 4 + [0.05] * 8


def test_a_scheduler_over_an_optimizer_is_run_apart_from_the_network() -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(
        [{"params": [net.weight]}, {"params": [net.bias], "lr": 0.2}], lr=0.1
    )
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    make = read_schedule(scheduler, steps=STEPS, lr=0.1)
    timetable = Timetable(read_optimizer(optimizer, net), make, steps=STEPS)
    courses = {c.group: dict(c.points)[3] for c in timetable.between(0, STEPS)}
    assert courses == {1: pytest.approx(0.1 / 8), 2: pytest.approx(0.2 / 8)}
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert scheduler.last_epoch == 0


def _stepped() -> Any:
    scheduler = lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), 3)
    scheduler.optimizer.step()
    scheduler.step()
    return scheduler


@pytest.mark.parametrize(
    ("asked", "arguments", "says"),
    [
        ("cosines", {}, "cosine"),
        ("step", {}, "step_size"),
        ("step", {"size": 3}, "size"),
        (3, {}, "give a name"),
        (lambda optimizer: 3, {}, "no scheduler"),
        ("onecycle", {"total_steps": 4}, "minibatch"),
        (None, {"gamma": 1}, "without a schedule"),
        (_stepped, {}, "already made 1 steps"),
    ],
)
def test_what_is_no_schedule_is_refused(
    asked: Any, arguments: dict[str, object], says: str
) -> None:
    if asked is _stepped:
        asked = _stepped()
    with pytest.raises(InputError, match=says):
        Timetable(
            RULE, read_schedule(asked, steps=STEPS, lr=0.1, arguments=arguments), steps=STEPS
        ).between(0, STEPS)


@pytest.mark.parametrize("warmup", [-1, STEPS + 1])
def test_a_warm_up_longer_than_the_run_is_refused(warmup: int) -> None:
    with pytest.raises(InputError, match="warmup"):
        Timetable(RULE, None, steps=STEPS, warmup=warmup)
