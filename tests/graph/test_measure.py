"""What measuring a network on a device says, and what it must not be led astray by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from weft.graph import measure as measuring
from weft.graph.accelerator import Compute
from weft.graph.capture.module import capture, state_of
from weft.graph.execute import Runner
from weft.graph.measure import measure
from weft.graph.network import Graph, Segment
from weft.graph.optimizers.optimizer import Optimizer


class Watched(Runner):
    """A runner that calls something after each forward pass, with what came out."""

    passed: Callable[[dict[str, Tensor]], None]

    def forward(
        self, inputs: Mapping[str, Tensor], *, training: bool = False, seed: int = 0
    ) -> dict[str, Tensor]:
        outputs = super().forward(inputs, training=training, seed=seed)
        self.passed(outputs)
        return outputs


@dataclass(frozen=True)
class Watching(Compute):
    passed: Callable[[dict[str, Tensor]], None] = field(default=lambda outputs: None)

    def runner(self, segment: Segment, state: Mapping[str, Tensor]) -> Runner:
        runner = Watched(segment, state)
        runner.passed = self.passed
        return runner


@dataclass
class Quota:
    """A clock, and a processor that gives half of each period of 4 ms. What was not taken of one period can
    be taken in the next one, as it is with a kernel's local slices."""

    period_s: float = 0.004
    quota_s: float = 0.002
    wall: float = 0.0
    cpu: float = 0.0
    left: float = 0.002
    filled: int = 0

    def work(self, seconds: float) -> None:
        while seconds > 1e-12:
            self.fill()
            end = (self.filled + 1) * self.period_s
            step = min(seconds, self.left, end - self.wall)
            seconds, self.left = seconds - step, self.left - step
            self.wall, self.cpu = self.wall + step, self.cpu + step
            if self.left <= 1e-12:
                self.wall = end

    def sleep(self, seconds: float) -> None:
        self.wall += seconds

    def fill(self) -> None:
        now = int(self.wall / self.period_s + 1e-9)
        periods = now - self.filled
        self.filled, self.left = now, min(2 * self.quota_s, self.left + periods * self.quota_s)


@pytest.fixture
def network() -> tuple[Graph, dict[str, Tensor]]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    return capture(module, torch.zeros(2, 4)), state_of(module)


@pytest.mark.parametrize("wall", [True, False])
def test_a_network_that_is_measured_does_not_train_until_its_numbers_overflow(
    network: tuple[Graph, dict[str, Tensor]], wall: bool
) -> None:
    """It did: LeNet-5 computed with NaN from the fourth round on, and its forward pass took 11 ms in place
    of 18."""
    outputs: list[bool] = []

    def passed(values: dict[str, Tensor]) -> None:
        outputs.extend(bool(value.isfinite().all()) for value in values.values())

    measure(*network, batch=8, repeats=5, wall=wall, optimizer=Optimizer("sgd", 1e30),
            compute=Watching(passed=passed))  # fmt: skip
    assert outputs
    assert all(outputs)


@pytest.mark.parametrize("pass_s", [0.0003, 0.01, 0.15])
def test_a_rest_lends_a_measurement_under_a_quota_nothing(
    network: tuple[Graph, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch, pass_s: float
) -> None:
    """It did: after a rest half a core was measured as 0.58 of one."""
    clock = Quota()
    fake = SimpleNamespace(
        monotonic=lambda: clock.wall, thread_time=lambda: clock.cpu,
        process_time=lambda: clock.cpu, sleep=clock.sleep,
    )  # fmt: skip
    monkeypatch.setattr(measuring, "time", fake)
    times = measure(*network, batch=8, repeats=5, wall=True, rest_s=0.01,
                    compute=Watching(passed=lambda outputs: clock.work(pass_s)))  # fmt: skip
    seconds = 8 * sum(times.forward_s) + sum(times.forward_call_s)
    assert seconds == pytest.approx(2 * pass_s, rel=0.03)
    assert times.share == pytest.approx(0.5, rel=0.03)


def test_a_short_update_gets_its_part_of_a_quotas_pauses(
    network: tuple[Graph, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause falls into few of the updates, and a median over rounds said that none does."""
    clock = Quota()
    fake = SimpleNamespace(
        monotonic=lambda: clock.wall, thread_time=lambda: clock.cpu,
        process_time=lambda: clock.cpu, sleep=clock.sleep,
    )  # fmt: skip
    monkeypatch.setattr(measuring, "time", fake)
    step = torch.optim.SGD.step

    def slow_step(self: torch.optim.SGD, closure: None = None) -> None:
        clock.work(0.0001)
        step(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", slow_step)
    times = measure(*network, batch=8, repeats=40, wall=True,
                    compute=Watching(passed=lambda outputs: clock.work(0.01233)))  # fmt: skip
    layers_with_weights = 2
    assert sum(times.update_s) == pytest.approx(2 * 0.0001, rel=0.3)
    assert sum(t > 0 for t in times.update_s) == layers_with_weights
