"""What would train something else than was asked for is refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import weft
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.capture.module import capture, capture_loss
from weft.graph.network import Graph
from weft.plans.plan import Plan
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.checks import check_loss, is_cross_entropy

FLEET = Fleet(
    (Device("pi", gflops=1.0, data=True), Device("nuc", "edge", gflops=4.0),
     Device("cloud", "cloud", gflops=9.0)),
    (Link(("pi", "nuc"), 50.0, 50.0, 1.0), Link(("nuc", "cloud"), 50.0, 50.0, 1.0),
     Link(("pi", "cloud"), 50.0, 50.0, 1.0)),
)  # fmt: skip
X, Y = torch.randn(24, 20, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 10
WEIGHTED = nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0))


class Root(nn.Module):
    """A root of a mean: it needs the outputs of all samples before any gradient."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target).sqrt()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 10))


def graph_with(loss: nn.Module) -> Graph:
    return capture_loss(capture(network(), X[:2]), loss, Y)


def plan_of(strategy: str, **options: object) -> Plan:
    return weft.plan(network(), X[:2], FLEET, strategy=strategy, mode="train", batch=8,
                     options=options)  # fmt: skip


@pytest.fixture
def no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that would start a node fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a node was started")

    monkeypatch.setattr(LocalFleet, "__enter__", refuse)


def test_a_loss_that_needs_the_whole_minibatch_goes_with_plans_that_do_not_cut_it() -> None:
    graph = graph_with(Root())
    check_loss(graph, plan_of("chain", devices="pi,nuc", micro_batches=1))
    check_loss(graph, plan_of("all-edge"))


def test_a_loss_that_needs_the_whole_minibatch_is_refused_where_it_is_cut(
    make_lanes: Callable[..., Plan],
) -> None:
    graph = graph_with(Root())
    pieces = plan_of("chain", devices="pi,nuc", micro_batches=4)
    with pytest.raises(
        InputError, match=r"Root.* sqrt of a sum .*chain.* 8 into pieces of 2 .*batches=1"
    ):
        check_loss(graph, pieces)
    shares = make_lanes((3, "aa"), (5, "bb"))
    with pytest.raises(InputError, match="share of the samples"):
        check_loss(graph, shares)
    for plan in (pieces, shares):
        check_loss(graph_with(nn.CrossEntropyLoss()), plan)
        check_loss(graph_with(nn.CrossEntropyLoss(reduction="sum")), plan)
        check_loss(graph_with(WEIGHTED), plan)


@pytest.mark.usefixtures("no_nodes")
def test_train_refuses_such_a_loss_before_anything_starts() -> None:
    with pytest.raises(InputError, match="sqrt of a sum"):
        weft.train(
            network(), (X, Y), Root(), fleet=FLEET, strategy="chain", steps=2, batch=8, local=True,
            options={"devices": "pi,nuc", "micro_batches": 2},
        )  # fmt: skip


@pytest.mark.parametrize(
    "loss",
    [
        WEIGHTED,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(ignore_index=0),
        nn.MSELoss(),
        functional.nll_loss,
        lambda y, t: functional.cross_entropy(y, t),
    ],
)
def test_every_loss_but_the_plain_one_is_told_from_it(loss: Any) -> None:
    assert not is_cross_entropy(loss)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), functional.cross_entropy])
def test_a_plain_cross_entropy_is_known(loss: Any) -> None:
    assert is_cross_entropy(loss)


@pytest.mark.usefixtures("no_nodes")
@pytest.mark.parametrize("strategy", ["decoupled", "decoupled+", "fedavg"])
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"adapt": True}, "no split to change"),
        ({"trace": "trace"}, "trace"),
    ],
)
def test_train_with_peers_refuses_what_they_would_drop(
    strategy: str, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        weft.train(
            network(), "digits", nn.CrossEntropyLoss(), fleet=FLEET, strategy=strategy, steps=2,
            local=True, **more,
        )  # fmt: skip


def only_class_three(output: Tensor, target: Tensor) -> Tensor:
    """A loss that knows a class by its number."""
    return (
        functional.cross_entropy(output, target, reduction="none") * (1 + 1.0 * (target == 3))
    ).mean()


@pytest.mark.usefixtures("no_nodes")
@pytest.mark.parametrize(
    ("strategy", "loss", "says"),
    [
        ("fedavg", nn.MSELoss(), "MSELoss"),
        ("decoupled", nn.MSELoss(), "MSELoss"),
        ("decoupled", only_class_three, "only_class_three.*treats some classes otherwise"),
        ("decoupled", nn.CrossEntropyLoss(ignore_index=3), "treats some classes otherwise"),
        ("decoupled+", nn.CrossEntropyLoss(weight=torch.ones(7)), "weight"),
        ("decoupled+", nn.NLLLoss(torch.ones(10), reduction="none"), "one number"),
    ],
)
def test_a_loss_that_some_of_the_classes_cannot_have_is_refused(
    strategy: str, loss: Any, says: str
) -> None:
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 9), nn.Linear(9, 10)
    )
    if strategy != "fedavg":
        with pytest.raises(InputError, match="loss"):
            weft.plan(net, torch.zeros(2, 1, 8, 8), FLEET, strategy=strategy, loss=loss)
    with pytest.raises(InputError, match=says):
        weft.train(net, "digits", loss, fleet=FLEET, strategy=strategy, steps=2, local=True)


@pytest.mark.usefixtures("no_nodes")
def test_a_swarm_refuses_adapt() -> None:
    with pytest.raises(InputError, match="adapt"):
        weft.train(
            network(), (X, Y), nn.CrossEntropyLoss(), fleet=FLEET, strategy="stitchnet", steps=2,
            batch=8, local=True, adapt=True,
        )  # fmt: skip
