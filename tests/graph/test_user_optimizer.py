"""What a user gives as an optimizer becomes names and numbers, or is refused in words."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from weft.errors import InputError
from weft.graph.optimizers.optimizer import CLASSES, Group, Optimizer, optimizer_class
from weft.graph.optimizers.user_optimizer import read_optimizer
from weft.graph.optimizers.words import SLOTS, slots_of


@pytest.fixture
def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_every_class_of_torch_optim_has_a_name_or_a_reason() -> None:
    classes = {
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and value is not torch.optim.Optimizer
    }
    assert classes - {"Optimizer"} - set(CLASSES.values()) == {"LBFGS", "SparseAdam"}
    assert set(SLOTS) == set(CLASSES)


@pytest.mark.parametrize("name", [n for n in CLASSES if n not in ("momentum", "muon")])
def test_a_name_has_the_settings_of_its_class(net: nn.Module, name: str) -> None:
    """But for the learning rates of sgd and adam, which are Weft's."""
    rule = read_optimizer(name, net, lr=0.01)
    built = rule.build(list(net.parameters())).param_groups[0]
    plain = optimizer_class(name)([nn.Parameter(torch.zeros(2))], lr=0.01).param_groups[0]
    assert {k: v for k, v in built.items() if k != "params"} == {
        k: v for k, v in plain.items() if k != "params"
    }


def test_the_ways_to_say_an_optimizer_mean_the_same(net: nn.Module) -> None:
    asked: list[Any] = [
        partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
        torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1),
        Optimizer("adamw", 0.01, weight_decay=0.1),
    ]
    rules = [read_optimizer(one, net) for one in asked]
    rules.append(read_optimizer("AdamW", net, lr=0.01, arguments={"weight_decay": 0.1}))
    rules.append(read_optimizer(torch.optim.AdamW, net, lr=0.01, arguments={"weight_decay": 0.1}))
    built = [rule.build(list(net.parameters())).param_groups[0] for rule in rules]
    for group in built:
        assert (group["lr"], group["weight_decay"]) == (0.01, 0.1)
        assert group["betas"] == (0.9, 0.999)


def test_a_record_survives_the_wire(net: nn.Module) -> None:
    rule = read_optimizer(
        "adafactor", net, arguments={"eps": (None, 0.01), "maximize": True}, no_decay=True
    )
    assert rule.groups == (
        Group(("0.bias", "1.weight", "1.bias", "2.bias"), {"weight_decay": 0.0}),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(rule), type=Optimizer) == rule


def test_what_an_older_version_wrote_is_read() -> None:
    written = msgspec.msgpack.encode({"name": "momentum", "lr": 0.1, "weight_decay": 0.2})
    rule = msgspec.msgpack.decode(written, type=Optimizer)
    built = rule.build([nn.Parameter(torch.zeros(2))]).param_groups[0]
    assert (built["momentum"], built["weight_decay"], built["lr"]) == (0.9, 0.2, 0.1)


class _Own(torch.optim.SGD):
    pass


def _foreign(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([*net.parameters(), nn.Parameter(torch.zeros(3))], lr=0.1)


def _used(net: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("make", "arguments", "says"),
    [
        (lambda net: "lbfgs", {}, "closure"),
        (lambda net: torch.optim.LBFGS, {}, "closure"),
        (lambda net: "sparseadam", {}, "sparse"),
        (lambda net: "adamx", {}, "adamw"),
        (lambda net: _Own, {}, "no class of torch.optim"),
        (lambda net: _Own(net.parameters(), lr=0.1), {}, "no class of torch.optim"),
        (_foreign, {}, "no weight of this network"),
        (_used, {}, "already made steps"),
        (lambda net: partial(torch.optim.SGD, [1]), {}, "by name"),
        (lambda net: 3, {}, "give a name"),
        (lambda net: "sgd", {"betas": (0.9, 0.9)}, "allowed are lr"),
        (lambda net: "adam", {"betas": (0.9, 2.0)}, "beta"),
        (lambda net: "adam", {"betas": "x"}, "optimizer adam"),
        (lambda net: "adam", {"eps": torch.zeros(2)}, "only numbers"),
        (lambda net: "adam", {"capturable": True}, "allowed are lr"),
        (lambda net: "sgd", {"lr": -1.0}, "above 0"),
        (lambda net: "muon", {}, "2D"),
        (lambda net: torch.optim.SGD(net.parameters(), lr=0.1), {"momentum": 0.9}, "already"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused(
    net: nn.Module, make: Any, arguments: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        read_optimizer(make(net), net, arguments=arguments)


@pytest.mark.parametrize("words", ["", "adamx", "adam speed", "sgd momentum twice"])
def test_unknown_words_of_a_plan_are_refused(words: str) -> None:
    with pytest.raises(InputError, match="allowed"):
        slots_of(words)
