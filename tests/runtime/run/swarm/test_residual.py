"""A residual network really run in a swarm: a skip connection is lost with the message that carries it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weft.draws import TRAINING
from weft.errors import InputError
from weft.fleet.fleet import Fleet, Link
from weft.graph.capture.module import capture, state_of
from weft.graph.split.masked import Masks
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.runtime.emulate.local import LocalFleet
from weft.strategies.stitchnet.swarm import spread_of

from .conftest import CLASSES, FLEET, subject_of

WIDTH, STEPS = 12, 5


class Residual(nn.Module):
    """h + relu(linear(h)), twice, between two ordinary layers."""

    def __init__(self, normed: bool = False) -> None:
        super().__init__()
        sizes = (7, WIDTH, WIDTH, WIDTH, CLASSES)
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(WIDTH) if normed else nn.Identity() for _ in sizes[2:]
        )
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        first, *hidden, last = self.layers
        h = torch.relu(self.norms[0](first(x)))
        for layer, norm in zip(hidden, self.norms[1:], strict=True):
            h = h + torch.relu(norm(layer(h)))
        out: Tensor = last(h)
        return out


class Heard(torch.autograd.Function):
    """What of a layer reaches the next: masks of the way there, and others of the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, there, back)
        return x @ (weight * there).t()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, there, back = ctx.saved_tensors
        return grads[0] @ (weight * back), (grads[0].t() @ x) * there, None, None


def loss_under(net: Residual, x: Tensor, y: Tensor, masks: Masks) -> Tensor:
    """The loss in one process, with the minibatch's losses as masks."""
    first, *hidden, last = net.layers
    h = torch.relu(net.norms[0]((x @ first.weight.t()) * masks.first + first.bias))
    one = torch.eye(WIDTH, dtype=x.dtype)
    for b, layer in enumerate(hidden):
        there, back = masks.hidden[b], masks.back_hidden[b]
        skipped = Heard.apply(
            h, one, there, back
        )  # each unit from the owner of the same unit before
        made = Heard.apply(h, layer.weight, there, back) + layer.bias
        h = skipped + torch.relu(net.norms[b + 1](made))
    seen = Heard.apply(h, one, torch.diag(masks.last), torch.diag(masks.back_last))
    return F.cross_entropy(seen @ last.weight.t() + last.bias, y)


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "batch-norm"])
@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("stitchnet", {}),
        ("random-units", {}),
        ("stitchnet+", {"drill": 50, "codec": "none", "input_codec": "none"}),
    ],
)
def test_a_residual_network_in_a_swarm_equals_one_process_with_the_same_losses(
    swarm: LocalFleet, strategy: str, more: dict[str, object], normed: bool
) -> None:
    torch.manual_seed(0)
    model = Residual(normed).to(torch.float64)
    subject = subject_of(model, (7,), dense=True)  # type: ignore[arg-type]
    task = make_task(
        derive_profile(subject.graph, FLEET), FLEET, batch=6, graph=subject.graph, optimizer="adam",
        options={"probes": 50, **more},
    )  # fmt: skip
    plan = decide(strategy, task)
    with subject.coordinator(swarm, plan) as run:
        run.prepare()
        outcome = run.steps(0, STEPS)
        state, _ = run.collect()
    masks = subject.channel(plan).masks(TRAINING, 0, STEPS)
    assert spread_of(plan).widths == (WIDTH,) * 3
    rule = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        rule.zero_grad()
        loss = loss_under(model, *subject.data(step), masks.at(step))
        loss.backward()
        rule.step()
        assert outcome.losses[step] == pytest.approx(float(loss.detach()), abs=1e-6)
    for name, tensor in state_of(model).items():
        torch.testing.assert_close(state[name], tensor.detach(), atol=1e-6, rtol=0)


class Longer(nn.Module):
    """A skip connection over two layers: two tensors cross the cut between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        out: Tensor = self.d(h + self.c(torch.relu(self.b(h))))
        return out


class Normed(nn.Module):
    """Layer norm needs all units of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(torch.relu(self.norm(self.a(x))))
        return out


class Shared(nn.Module):
    """The skip is not added but enters a softmax with the layer's own values."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        out: Tensor = self.c(torch.softmax(h + self.b(h), 1))
        return out


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Longer(), "layer b hands 2 tensors"),
        (Normed(), r"\(a\) cannot be spread by units: .*norm"),
        (Shared(), r"\(b\) cannot be spread by units: softmax needs the whole vector"),
    ],
    ids=["longer", "layer-norm", "softmax"],
)
@pytest.mark.parametrize("strategy", ["stitchnet", "stitchnet+"])
def test_what_a_swarm_cannot_spread_is_refused_at_planning_with_the_layer(
    model: nn.Module, reason: str, strategy: str
) -> None:
    graph = capture(model, torch.zeros(2, 8), name="net")
    task = make_task(derive_profile(graph, FLEET), FLEET, batch=6, graph=graph)
    with pytest.raises(InputError, match=reason):
        decide(strategy, task)


class ResidualConvolutions(nn.Module):
    """Channels are units too: batch norm and a skip connection channel by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.c, self.d = nn.Linear(8 * 64, 10), nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norms[0](self.a(x)))
        h = torch.relu(h + self.norms[1](self.b(h)))
        out: Tensor = self.d(torch.relu(self.c(h.flatten(1))))
        return out


@pytest.mark.parametrize("strategy", ["stitchnet", "random-units"])
def test_a_residual_convolutional_network_in_a_swarm_that_loses_nothing_equals_one_process(
    swarm: LocalFleet, strategy: str
) -> None:
    torch.manual_seed(0)
    model = ResidualConvolutions().to(torch.float64)
    subject = subject_of(model, (1, 8, 8), dense=False)  # type: ignore[arg-type]
    links = tuple(Link(link.between, 100.0, 100.0) for link in FLEET.link)
    fleet = Fleet(FLEET.devices, links)
    task = make_task(
        derive_profile(subject.graph, fleet), fleet, batch=6, graph=subject.graph, optimizer="adam"
    )
    plan = decide(strategy, task)
    with subject.coordinator(swarm, plan) as run:
        run.prepare()
        outcome = run.steps(0, STEPS)
        state, _ = run.collect()
    rule = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        x, y = subject.data(step)
        rule.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        rule.step()
        assert outcome.losses[step] == pytest.approx(float(loss.detach()), abs=1e-6)
    for name, tensor in state_of(model).items():
        torch.testing.assert_close(state[name], tensor.detach(), atol=1e-6, rtol=0)
