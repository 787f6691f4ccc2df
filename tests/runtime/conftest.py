"""Three real node processes that many tests share, and what it takes to run a plan on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.network import Graph
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan, Shard
from weft.program.timeline import Timeline
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.jobs import Settings
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.run import Run
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew

settings.register_profile("weft", deadline=None)  # the first call of many operators is slow
settings.load_profile("weft")

DEVICES = (
    Device("pi", gflops=1.0, data=True),
    Device("nuc", tier="edge", gflops=2.0),
    Device("cloud", tier="cloud", gflops=4.0),
)


def link(a: str, b: str) -> Link:
    return Link((a, b), 1000.0, 1000.0, 0.1)


TRIANGLE = Fleet(DEVICES, (link("pi", "nuc"), link("nuc", "cloud"), link("pi", "cloud")))
ROW = Fleet(DEVICES, (link("pi", "nuc"), link("nuc", "cloud")))  # pi reaches cloud over nuc


@pytest.fixture(scope="session", autouse=True)
def _one_thread(one_thread: None) -> None: ...


@pytest.fixture(scope="session")
def triangle() -> Fleet:
    return TRIANGLE


@pytest.fixture(scope="session")
def row() -> Fleet:
    return ROW


@pytest.fixture(scope="session")
def nodes() -> Iterator[LocalFleet]:
    with LocalFleet(("pi", "nuc", "cloud")) as local:
        local.crew.wait_for(local.names, 180.0)
        yield local


@dataclass(frozen=True)
class Subject:
    """A network with its loss, and the minibatches it is trained on."""

    module: nn.Module
    graph: Graph
    batch: int
    shape: tuple[int, ...]

    @property
    def last(self) -> int:
        return len(self.graph.layers) - 1

    def data(self, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 + step)
        x = torch.randn(self.batch, *self.shape, generator=generator)
        return x, torch.randint(0, 10, (self.batch,), generator=generator)

    def feed(self, step: int) -> tuple[dict[str, Tensor], Tensor | None]:
        x, y = self.data(step)
        return {self.graph.inputs[0]: x}, y

    def state(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in state_of(self.module).items()}

    def plan(self, *shards: tuple[str, int, int], fleet: Fleet = TRIANGLE, **fields: Any) -> Plan:
        """A plan by hand: (device, first layer, last layer) each."""
        given: dict[str, Any] = {
            "strategy": "by hand", "model": "test", "batch": self.batch, "mode": "train",
            "source": "pi", **fields,
        }  # fmt: skip
        return Plan(
            **given,
            shards=tuple(Shard(device, (first, last)) for device, first, last in shards),
            fleet=fleet,
            profile=derive_profile(self.graph, fleet),
        )


def subject_of(module: nn.Module, shape: tuple[int, ...], batch: int) -> Subject:
    graph = capture(module, torch.zeros(2, *shape))
    graph = capture_loss(graph, nn.CrossEntropyLoss(), torch.zeros(2, dtype=torch.long))
    return Subject(module, graph, batch, shape)


@pytest.fixture(scope="session")
def make_subject() -> Callable[..., Subject]:
    return subject_of


@pytest.fixture(scope="session")
def small() -> Subject:
    """Three dense layers: quick where it does not matter what is trained."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 10)
    )
    return subject_of(module, (20,), 8)


@dataclass(frozen=True)
class Ran:
    state: dict[str, Tensor]
    outcome: Outcome
    timeline: Timeline
    nodes: Mapping[str, msg.Spans]


@pytest.fixture(scope="session")
def run_plan(nodes: LocalFleet) -> Callable[..., Ran]:
    def run(
        subject: Subject,
        plan: Plan,
        steps: int,
        *,
        crew: Crew | None = None,
        between: Callable[[Run], None] = lambda _: None,
        **changes: Any,
    ) -> Ran:
        """Runs a plan on the shared nodes; `between` is called when all are prepared."""
        wanted = Settings(shaping="fabric", scratch=nodes.scratch, same_clock=True)
        wanted = replace(wanted, **changes)
        with Run(
            crew or nodes.crew, plan, subject.graph, subject.state(), wanted, subject.feed
        ) as running:
            running.prepare()
            between(running)
            outcome = running.steps(0, steps)
            state, _ = running.collect()
            timeline, spans = running.timeline()
        return Ran(state, outcome, timeline, spans)

    return run


def with_fields(plan: Plan, **fields: Any) -> Plan:
    return msgspec.structs.replace(plan, **fields)
