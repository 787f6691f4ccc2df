"""Five real node processes of a swarm, and small networks that are spread over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from weft.draws import TRAINING
from weft.fleet.fleet import Fleet
from weft.fleet.radio import Matrix, Radio, fleet_delivery, radio_fleet, topology
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.network import Graph
from weft.graph.optimizers.optimizer import Optimizer
from weft.graph.split.lost_values import LostValues
from weft.graph.split.masked import Perceptron
from weft.graph.split.masked_conv import ConvNet
from weft.planning.task import make_task
from weft.plans.delivery import Routes, routes_of
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.program.instructions import Send
from weft.program.lower.lower import lower
from weft.reference.lossy import LossyRadio
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.jobs import Settings
from weft.runtime.run.measured import total_counts
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.recovery.clone import Clone
from weft.runtime.run.run import Run
from weft.strategies.stitchnet.mapped import as_plan
from weft.strategies.stitchnet.mapping import Spread
from weft.strategies.stitchnet.swarm import spread_of

DEVICES, CLASSES, BATCH = 5, 3, 6
PLACE = topology(7, Radio(devices=DEVICES))
FLEET, PRR = radio_fleet(PLACE, 4.1, mbps=100.0), PLACE.measured(4.1)
SIZES = (7, 12, 8, 10, CLASSES)
IMAGE = (1, 8, 8)


@dataclass(frozen=True)
class Subject:
    """A small network in double precision, its minibatches, and its plans on the five devices."""

    model: nn.Sequential
    graph: Graph
    shape: tuple[int, ...]  # of one sample
    dense: bool
    fleet: Fleet = FLEET
    prr: Matrix = field(default_factory=lambda: PRR)

    @property
    def layers(self) -> list[str]:
        """What the layers' weights are called, without `.weight`."""
        return [name[:-7] for name in state_of(self.model) if name.endswith(".weight")]

    @property
    def widths(self) -> tuple[int, ...]:
        state = state_of(self.model)
        return tuple(len(state[f"{name}.bias"]) for name in self.layers[:-1])

    def data(self, step: int) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(step)
        x = torch.rand(BATCH, *self.shape, generator=random, dtype=torch.float64)
        return x, torch.randint(CLASSES, (BATCH,), generator=random)

    def feed(self, step: int) -> tuple[dict[str, Tensor], Tensor | None]:
        x, y = self.data(step)
        return {self.graph.inputs[0]: x}, y

    def plan(
        self, spread: Spread, routes: Routes, fleet: Fleet = FLEET, update: LostValues = "zero",
        **more: Any,
    ) -> Plan:  # fmt: skip
        task = make_task(
            derive_profile(self.graph, fleet), fleet, batch=BATCH, graph=self.graph, optimizer="adam",
            options={"update": update},
        )  # fmt: skip
        plan = as_plan(task, "stitchnet", PRR, spread, routes, {})
        assert plan.swarm is not None
        swarm = msgspec.structs.replace(plan.swarm, **{"seed": 5, "every": 2, **more})
        return msgspec.structs.replace(plan, swarm=swarm)

    def coordinator(self, local: LocalFleet, plan: Plan, **more: Any) -> Run:
        kind = more.pop("kind", Run)
        settings = Settings(
            optimizer=Optimizer("adam", lr=1e-3), same_clock=True, deadline_s=20.0, **more
        )
        return kind(
            local.crew,
            plan,
            self.graph,
            state_of(self.model),
            settings,
            self.feed,
            recovery=Clone(),
        )

    def channel(self, plan: Plan) -> LossyRadio:
        assert plan.swarm is not None
        return LossyRadio(
            spread_of(plan), routes_of(plan), fleet_delivery(plan.fleet), seed=plan.swarm.seed,
            update=plan.swarm.late, dtype=torch.float64, drill=plan.swarm.drill,
        )  # fmt: skip

    def masked(
        self, state: Mapping[str, Tensor] | None = None, update: LostValues = "zero"
    ) -> Perceptron | ConvNet:
        """The same network in the masked form."""
        net: Perceptron | ConvNet = (
            Perceptron(SIZES, update=update, dtype=torch.float64)
            if self.dense
            else ConvNet(IMAGE, CLASSES, update=update, dtype=torch.float64)
        )
        given = state or state_of(self.model)
        with torch.no_grad():
            for name, weight, bias in zip(self.layers, net.weights, net.biases, strict=True):
                weight.copy_(given[f"{name}.weight"])
                bias.copy_(given[f"{name}.bias"])
        return net

    def simulated(self, plan: Plan, steps: int) -> tuple[Perceptron | ConvNet, dict[int, float]]:
        """The same training in one process, with masks in place of messages."""
        assert plan.swarm is not None
        net = self.masked(update=plan.swarm.late)
        masks = self.channel(plan).masks(TRAINING, 0, steps)
        losses = {s: net.step(*self.data(s), masks.at(s)) for s in range(steps)}
        return net, {s: float(loss) for s, loss in losses.items() if loss is not None}

    def same(self, state: Mapping[str, Tensor], net: Perceptron | ConvNet) -> float:
        """Asserts that every weight and bias is equal to 1e-6; how far the furthest has moved."""
        before, moved = state_of(self.model), 0.0
        for name, weight, bias in zip(self.layers, net.weights, net.biases, strict=True):
            torch.testing.assert_close(state[f"{name}.weight"], weight.detach(), atol=1e-6, rtol=0)
            torch.testing.assert_close(state[f"{name}.bias"], bias.detach(), atol=1e-6, rtol=0)
            moved = max(moved, float((weight - before[f"{name}.weight"]).detach().abs().max()))
        return moved

    def agree(self, local: LocalFleet, plan: Plan, steps: int = 5) -> dict[int, float]:
        """Runs both ways: every weight, bias and loss equal to 1e-6; the run's losses."""
        with self.coordinator(local, plan) as run:
            run.prepare()
            outcome = run.steps(0, steps)
            state, _ = run.collect()
            _, nodes = run.timeline()
        net, losses = self.simulated(plan, steps)
        assert outcome.losses == pytest.approx(losses, abs=1e-6)
        assert self.same(state, net) > 1e-4 or not losses
        counts = total_counts(nodes)
        # A device that nobody sends a gradient has none to hand on, so some messages may never be sent.
        sends = [i for body in lower(plan).code.values() for i in body if isinstance(i, Send)]
        messages = sum(send.radio is not None for send in sends)
        assert counts["messages"] == messages * steps
        assert counts["heard"] + counts["unheard"] == messages * steps
        if plan.swarm and plan.swarm.late != "none":
            assert counts["unheard"] > steps, "else nothing was tried"
        return losses


def subject_of(model: nn.Sequential, shape: tuple[int, ...], dense: bool) -> Subject:
    graph = capture_loss(
        capture(model, torch.zeros(2, *shape, dtype=torch.float64), name="small"),
        nn.CrossEntropyLoss(),
        torch.zeros(2, dtype=torch.long),
    )
    return Subject(model, graph, shape, dense)


@pytest.fixture(scope="session")
def perceptron() -> Subject:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for into, out in pairwise(SIZES):
        layers += [nn.Linear(into, out, dtype=torch.float64), nn.ReLU()]
    return subject_of(nn.Sequential(*layers[:-1]), SIZES[:1], dense=True)


@pytest.fixture(scope="session")
def convolutions() -> Subject:
    """The network of `graph.masked_conv`, as a user would write it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 4, 64), nn.ReLU(), nn.Linear(64, CLASSES),
    )  # fmt: skip
    return subject_of(model.to(torch.float64), IMAGE, dense=False)


@pytest.fixture(scope="session")
def _five() -> Iterator[LocalFleet]:
    with LocalFleet(FLEET.names) as local:
        local.crew.wait_for(local.names, 180.0)
        yield local


@pytest.fixture
def swarm(_five: LocalFleet) -> LocalFleet:
    """All five are there, whatever the test before has done to them."""
    for name, process in _five.processes.items():
        if process.poll() is not None:
            _five.restart(name)
    _five.crew.wait_for(_five.names, 180.0)
    return _five


class Once:
    """Does something when a few minibatches are done, and something else when that has shown."""

    def __init__(
        self, act: Callable[[], None], then: Callable[[Outcome], None] = lambda _: None
    ) -> None:
        self.act, self.then, self.done = act, then, False

    def __call__(self, outcome: Outcome) -> None:
        if not self.done and min(outcome.done.values()) >= 5:
            self.done = True
            self.act()
        elif self.done:
            self.then(outcome)


@pytest.fixture
def once() -> type[Once]:
    return Once
