"""A phone and servers as real processes, and a small network for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.adapt.adaptive import Adaptive
from weft.adapt.steer import PolicySteering
from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.network import Graph
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.derive import derive_profile
from weft.plans.online import Decision, Online, Seen, Setting
from weft.plans.plan import Plan, Shard
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.jobs import Settings
from weft.runtime.run.recovery.go_back import GoBack
from weft.runtime.run.run import Run

SERVERS = ("e1", "e2", "e3")


@pytest.fixture(scope="session", autouse=True)
def _one_thread(one_thread: None) -> None: ...


def make_fleet() -> Fleet:
    radio = tuple(Link(("phone", s), 200.0, 200.0, 1.0) for s in SERVERS)
    wires = tuple(Link((a, b), 1000.0, 1000.0, 0.1)
                  for i, a in enumerate(SERVERS) for b in SERVERS[i + 1 :])  # fmt: skip
    devices = (Device("phone", gflops=1.0, data=True),
               *(Device(s, "edge", gflops=4.0) for s in SERVERS))  # fmt: skip
    return Fleet(devices, radio + wires)


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    return make_fleet()


@pytest.fixture(scope="module")
def mortal() -> Iterator[Callable[..., LocalFleet]]:
    """Node processes that a test may kill: asked for names, those that are not there are started. What
    earlier tests left and nobody asked for stays."""
    with LocalFleet(("phone",)) as local:

        def there(*names: str) -> LocalFleet:
            for name in names:
                process = local.processes.get(name)
                if process is None or process.poll() is not None:
                    local.processes[name] = local._start(name)
            local.crew.wait_for(names, 60.0)
            return local

        yield there


@pytest.fixture(scope="session")
def shared() -> Iterator[LocalFleet]:
    """Nodes for tests that end nobody."""
    with LocalFleet(("phone", *SERVERS)) as local:
        local.crew.wait_for(local.names, 60.0)
        yield local


@dataclass(frozen=True)
class Subject:
    module: nn.Module
    graph: Graph
    batch: int = 8

    @property
    def last(self) -> int:
        return len(self.graph.layers) - 1

    def data(self, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 + step)
        x = torch.randn(self.batch, 20, generator=generator)
        return x, torch.randint(0, 10, (self.batch,), generator=generator)

    def feed(self, step: int) -> tuple[dict[str, Tensor], Tensor | None]:
        x, y = self.data(step)
        return {self.graph.inputs[0]: x}, y

    def state(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in state_of(self.module).items()}

    def plan(self, worker: str | None, cut: int, fleet: Fleet, **fields: Any) -> Plan:
        shards = (Shard("phone", (0, self.last)),)
        if worker is not None:
            shards = (Shard("phone", (0, cut - 1)), Shard(worker, (cut, self.last)))
        given: dict[str, Any] = {"strategy": "by hand", "model": "test", "batch": self.batch,
                                 "mode": "train", "source": "phone", **fields}  # fmt: skip
        return Plan(**given, shards=shards, fleet=fleet, profile=derive_profile(self.graph, fleet))


@pytest.fixture(scope="session")
def subject() -> Subject:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Tanh(),
        nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 10),
    )  # fmt: skip
    graph = capture(module, torch.zeros(2, 20))
    return Subject(module, capture_loss(graph, nn.CrossEntropyLoss(), torch.zeros(2).long()))


@dataclass
class Script:
    """A policy that does what it is told, look by look, and remembers what it saw."""

    settings: list[Setting | None] = field(default_factory=list)
    every: int = 10
    start: Setting | None = None
    seen: list[Seen] = field(default_factory=list)

    def decide(self, seen: Seen) -> Decision | None:
        self.seen.append(seen)
        if len(self.seen) == 1:
            return Decision(self.start, "to begin with") if self.start else None
        if seen.lost or not self.settings:
            return None
        setting = self.settings.pop(0)
        return None if setting is None else Decision(setting, "as the script says")


@pytest.fixture
def script() -> type[Script]:
    return Script


MOMENTUM = Optimizer("momentum", 0.02)


class Ran:
    def __init__(self, live: Run, state: dict[str, Tensor], losses: dict[int, float]) -> None:
        self.live, self.state, self.losses = live, state, losses
        self.kinds = [event["kind"] for event in live.events]


@pytest.fixture
def go(subject: Subject, fleet: Fleet) -> Callable[..., Ran]:
    def run(
        local: LocalFleet, policy: Any, steps: int, *, rule: Optimizer = MOMENTUM,
        start: tuple[str | None, int] = ("e1", 2), standby: str = "none",
        labels: Any = "worker", on: Fleet = fleet, reference: str = "e1",
        on_step: Callable[[int], None] = lambda _: None, keep_every: int = 1000, **changes: Any,
    ) -> Ran:  # fmt: skip
        settings = replace(
            Settings(optimizer=rule, shaping="fabric", scratch=local.scratch, same_clock=True,
                     keep_every=(keep_every,)),
            **changes,
        )  # fmt: skip
        steering = PolicySteering(Online(policy, reference, standby, labels))
        adviser = Adaptive(lambda plan: steering)
        plan = adviser.first(subject.plan(*start, on))
        with Run(
            local.crew, plan, subject.graph, subject.state(), settings, subject.feed,
            recovery=GoBack(), adviser=adviser,
        ) as live:  # fmt: skip
            live.prepare()
            if settings.trace is not None:
                live.start_trace()
            outcome = live.steps(0, steps, lambda outcome: on_step(min(outcome.done.values()) + 1))
            found, _ = live.collect()
        return Ran(live, found, outcome.losses)

    return run
