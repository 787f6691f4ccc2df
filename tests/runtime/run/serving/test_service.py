"""A service on real processes: any thread calls it, wrong calls harm nobody, lost devices are replaced."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.errors import InputError, LostDevice, WeftError
from weft.fleet.fleet import Fleet
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.serve import Served
from weft.runtime.run.serving.attendants import NobodyLeft

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
WAIT_S = 120.0


def network() -> nn.Module:
    torch.manual_seed(2)
    layers = (nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))
    return nn.Sequential(*layers).eval()


MODEL = network()


def right(answer: Tensor, k: int) -> None:
    with torch.no_grad():
        torch.testing.assert_close(answer, MODEL(X[k : k + 1]), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def net(triangle: Fleet) -> Iterator[Served]:
    with weft.serve(
        MODEL, X[:1], triangle, strategy="chain", local=True, options={"devices": "pi,nuc,cloud"},
        queue=4, patience=5.0,
    ) as served:  # fmt: skip
        yield served


def fleet_of(net: Served) -> LocalFleet:
    """The emulated fleet that a service has started."""
    group = net._run.crew.group
    fleets = (thing for thing in gc.get_objects() if type(thing) is LocalFleet)
    return next(fleet for fleet in fleets if fleet.group == group)


@pytest.fixture
def local(net: Served) -> LocalFleet:
    return fleet_of(net)


def ask_often(net: Served, x: Tensor) -> None:
    """So often that a device which has just been killed is missed."""
    for _ in range(10_000):
        net(x)


def ask_until(net: Served, seen: Callable[[], bool]) -> None:
    """Asks until the service has noticed something; there are enough requests for a slow machine."""
    for k in range(20_000):
        if seen():
            return
        right(net(X[k % 40 : k % 40 + 1]), k % 40)
    raise AssertionError(f"not seen: {net.events}")


def kinds(net: Served) -> list[str]:
    return [event["kind"] for event in net.events]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (X[:2], "2 samples given, but the plan is for batch 1"),
        (X[0], "6 samples given"),
        (torch.zeros(1, 7), "captured for float32"),
        (torch.zeros(1, 6, 1), "captured for float32"),
        (torch.zeros(1, 6, dtype=torch.float64), "is float64"),
        (torch.tensor(1.0), "no batch dimension"),
        (X[:1].to_sparse(), "give a dense tensor"),
        ("text", "is a str"),
        (None, "input"),
        ((X[:1], X[:1]), "give it as one tensor"),
    ],
)
def test_a_wrong_request_is_refused_and_harms_nobody(net: Served, wrong: Any, says: str) -> None:
    others = [net.submit(X[k : k + 1]) for k in range(3)]
    with pytest.raises(InputError, match=says):
        net(wrong)
    for k, other in enumerate(others):
        right(other.result(WAIT_S), k)
    right(net(X[3:4]), 3)


def test_threads_that_call_at_once_get_their_own_answers(net: Served) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(net, [X[k % 40 : k % 40 + 1] for k in range(80)]))
    for k, answer in enumerate(answers):
        right(answer, k % 40)


def test_an_input_with_gradients_and_a_timeline_are_no_trouble(net: Served) -> None:
    right(net(X[:1].clone().requires_grad_()), 0)
    spans = net.timeline()[0].spans
    assert {span.what for span in spans} >= {"load", "forward", "emit"}


def test_requests_under_way_are_asked_again_when_a_device_dies(
    net: Served, local: LocalFleet
) -> None:
    with ThreadPoolExecutor(8) as pool:
        futures: list[Future[Tensor]] = []
        for k in range(60):
            if k == 20:
                local.kill("cloud")
            futures.append(pool.submit(net, X[k % 40 : k % 40 + 1]))
        for k, future in enumerate(futures):
            right(future.result(WAIT_S), k % 40)
    ask_until(net, lambda: "recovered" in kinds(net))
    assert "cloud" not in net.plan.devices
    lost = [event["device"] for event in net.events if event["kind"] == "device_lost"]
    assert lost == ["cloud"]
    local.restart("cloud")
    ask_until(net, lambda: "device_joined" in kinds(net))
    right(net(X[:1]), 0)


def test_another_device_loads_when_the_one_that_loads_dies(net: Served, local: LocalFleet) -> None:
    assert net.plan.source == "pi"
    local.kill("pi")
    ask_until(net, lambda: net.plan.source != "pi")
    right(net(X[5:6]), 5)
    local.restart("pi")
    ask_until(net, lambda: net.plan.source == "pi")
    right(net(X[6:7]), 6)


def test_when_nobody_is_left_calls_fail_in_words_until_somebody_is_back(
    net: Served, local: LocalFleet
) -> None:
    for name in local.names:
        local.kill(name)
    with pytest.raises(NobodyLeft, match="nobody is left who can answer"):
        ask_often(net, X[:1])
    local.restart("nuc")
    local.crew.wait_for(["nuc"], WAIT_S)

    def answers() -> bool:
        try:
            right(net(X[7:8]), 7)
        except WeftError:
            return False
        return True

    assert any(answers() for _ in range(1000))
    assert net.plan.devices == ("nuc",)


class Words(nn.Module):
    """Its embedding fails on the device that computes it if a number is too large: no shape tells."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.out = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, words: Tensor) -> Tensor:
        result: Tensor = self.out(self.embedding(words).mean(1))
        return result


def test_a_request_that_fails_on_a_device_fails_alone_and_a_stopped_service_says_why(
    triangle: Fleet,
) -> None:
    model = Words().eval()
    good, bad = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 99]])
    with weft.serve(
        model, good, triangle, strategy="chain", local=True, options={"devices": "pi,nuc"},
        on_loss="stop",
    ) as net:  # fmt: skip
        futures = [net.submit(bad if k in (2, 4) else good) for k in range(7)]
        for k, future in enumerate(futures):
            if k in (2, 4):
                with pytest.raises(WeftError, match="index out of range"):
                    future.result(WAIT_S)
            else:
                torch.testing.assert_close(future.result(WAIT_S), model(good).detach())
        torch.testing.assert_close(net(good), model(good).detach())
        fleet_of(net).kill(net.plan.devices[-1])
        for _ in range(2):  # also the calls after it
            with pytest.raises(LostDevice, match=net.plan.devices[-1]):
                ask_often(net, good)


@pytest.mark.proof
def test_a_device_that_answers_keeps_the_newest_part_of_its_timeline(triangle: Fleet) -> None:
    with weft.serve(MODEL, X[:1], triangle, strategy="chain", local=True) as net:
        for _ in range(10):
            net.stream([X[:1]] * 200)
        timeline, nodes = net.timeline()
    assert all(len(spans.spans) <= 2 * 4000 for spans in nodes.values())
    assert max(span.step for span in timeline.spans) == 1999
