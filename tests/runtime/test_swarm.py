"""A spread network on real processes: equal to the masked form under the same losses; deaths and silence."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
from weft.api import make_task
from weft.errors import WeftError
from weft.fleet.fleet import Fleet, Link
from weft.fleet.losses import TESTING, TRAINING
from weft.fleet.radio import Radio, fleet_delivery, radio_fleet, topology
from weft.graph.capture import capture, capture_loss, state_of
from weft.graph.masked import Perceptron
from weft.graph.optimizer import Optimizer
from weft.graph.partial import Update
from weft.plan.derive import derive_profile
from weft.plan.plan import Plan
from weft.plan.stitchnet import as_plan
from weft.plan.stitchnet_mapping import Spread, mix_mapped
from weft.plan.stitchnet_paths import Path, Routes, plan_routes, wanted
from weft.plan.swarm_plan import routes_of, spread_of, with_swarm
from weft.report.results import train_document, train_table
from weft.report.tables import render
from weft.runtime.jobs import Settings
from weft.runtime.local import LocalFleet
from weft.runtime.outcome import Outcome
from weft.runtime.swarm import SwarmCoordinator, total_counts
from weft.simulate.lossy import Channel

DEVICES, INPUTS, WIDTHS, CLASSES, BATCH = 5, 7, (12, 8, 10), 3, 6
SIZES = (INPUTS, *WIDTHS, CLASSES)
PLACE = topology(7, Radio(devices=DEVICES))
BAD, PRR = radio_fleet(PLACE, 4.1, mbps=100.0), PLACE.measured(4.1)
GOOD = Fleet(  # so good that some minibatches lose nothing
    BAD.devices, tuple(Link(link.between, 100.0, 100.0, loss=0.02) for link in BAD.link)
)


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for into, out in pairwise(SIZES):
        layers += [nn.Linear(into, out, dtype=torch.float64), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


MODEL = perceptron()
GRAPH = capture_loss(
    capture(MODEL, torch.zeros(2, INPUTS, dtype=torch.float64), name="small"),
    nn.CrossEntropyLoss(),
    torch.zeros(2, dtype=torch.long),
)


def data(step: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(step)
    x = torch.rand(BATCH, INPUTS, generator=random, dtype=torch.float64)
    return x, torch.randint(CLASSES, (BATCH,), generator=random)


def feed(step: int) -> tuple[dict[str, Tensor], Tensor | None]:
    x, y = data(step)
    return {GRAPH.inputs[0]: x}, y


def plan_of(
    spread: Spread, routes: Routes, fleet: Fleet = BAD, update: Update = "zero", **more: Any
) -> Plan:
    task = make_task(
        derive_profile(GRAPH, fleet), fleet, batch=BATCH, graph=GRAPH, optimizer="adam",
        options={"update": update},
    )  # fmt: skip
    plan = as_plan(task, "stitchnet", PRR, spread, routes, {})
    return with_swarm(plan, GRAPH, **{"seed": 5, "prr": PRR, "every": 2, **more})


@pytest.fixture(scope="module")
def swarm() -> Iterator[LocalFleet]:
    with LocalFleet(BAD.names) as local:
        local.crew.wait_for(local.names, 180.0)
        yield local


def coordinator(local: LocalFleet, plan: Plan, **more: Any) -> SwarmCoordinator:
    settings = Settings(
        optimizer=Optimizer("adam", lr=1e-3), same_clock=True, deadline_s=20.0, **more
    )
    return SwarmCoordinator(local.crew, plan, GRAPH, state_of(MODEL), settings, feed)


def simulated(plan: Plan, steps: int) -> tuple[Perceptron, dict[int, float]]:
    """The same training in one process, with masks in place of messages."""
    assert plan.swarm is not None
    net = Perceptron(SIZES, update=plan.swarm.late, dtype=torch.float64)
    with torch.no_grad():
        for k, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
            weight.copy_(MODEL[2 * k].weight)
            bias.copy_(MODEL[2 * k].bias)
    channel = Channel(
        spread_of(plan), routes_of(plan), fleet_delivery(plan.fleet), seed=plan.swarm.seed,
        update=plan.swarm.late, dtype=torch.float64,
    )  # fmt: skip
    masks = channel.masks(TRAINING, 0, steps)
    losses = {s: net.step(*data(s), masks.at(s)) for s in range(steps)}
    return net, {s: float(loss) for s, loss in losses.items() if loss is not None}


def agree(local: LocalFleet, plan: Plan, steps: int = 5) -> dict[int, float]:
    """Runs both ways: every weight, bias and loss equal to 1e-6; the run's losses."""
    with coordinator(local, plan) as run:
        run.prepare()
        outcome = run.steps(0, steps)
        state, _ = run.collect()
        _, nodes = run.timeline()
    net, losses = simulated(plan, steps)
    assert outcome.losses == pytest.approx(losses, abs=1e-6)
    moved = 0.0
    for k, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        torch.testing.assert_close(state[f"{2 * k}.weight"], weight, atol=1e-6, rtol=0)
        torch.testing.assert_close(state[f"{2 * k}.bias"], bias, atol=1e-6, rtol=0)
        moved = max(moved, float((weight - MODEL[2 * k].weight.detach()).abs().max()))
    assert moved > 1e-4 or not losses
    counts = total_counts(run, nodes)
    messages = len(plan.swarm.messages if plan.swarm else ())
    assert counts["messages"] == messages * steps
    assert counts["heard"] + counts["unheard"] == messages * steps
    if plan.swarm and plan.swarm.late != "none":
        assert counts["unheard"] > steps, "else nothing was tried"
    return losses


@pytest.mark.parametrize("update", ["zero", "own"])
@pytest.mark.parametrize("path", ["direct", "coordinator", "subpath"])
def test_real_devices_compute_what_the_masks_do(
    swarm: LocalFleet, path: Path, update: Update
) -> None:
    spread = mix_mapped(PRR, WIDTHS)
    plan = plan_of(spread, plan_routes(path, PRR, spread), update=update)
    assert len(agree(swarm, plan)) == 5


@pytest.mark.parametrize("path", ["direct", "coordinator", "subpath"])
def test_a_minibatch_with_any_loss_is_given_up_by_all(swarm: LocalFleet, path: Path) -> None:
    spread = mix_mapped(PRR, WIDTHS)
    plan = plan_of(spread, plan_routes(path, PRR, spread), GOOD, "none")
    assert 0 < len(agree(swarm, plan, 12)) < 12


def test_packets_sent_twice_other_relays_and_messages_left_out_are_the_same_too(
    swarm: LocalFleet,
) -> None:
    spread = mix_mapped(PRR, WIDTHS)
    asked = wanted(spread)
    random = np.random.RandomState(1)
    direct, relayed = (random.randint(0, 3, asked.shape) * asked for _ in range(2))
    direct[0] = np.maximum(direct[0], asked[0])  # the samples reach whoever needs them
    via = np.array([[next(k for k in (3, 1, 4) if k not in (i, j)) for j in range(DEVICES)]
                    for i in range(DEVICES)])  # fmt: skip
    agree(swarm, plan_of(spread, Routes(direct, relayed, via)))


def test_slots_by_the_clock_lose_no_less_than_the_radio(swarm: LocalFleet) -> None:
    spread = mix_mapped(PRR, WIDTHS)
    plan = plan_of(spread, plan_routes("subpath", PRR, spread), slot_ms=25.0)
    steps = 6
    with coordinator(swarm, plan, shaping="fabric", scratch=swarm.scratch) as run:
        run.prepare()
        outcome = run.steps(0, steps)
        timeline, nodes = run.timeline()
    counts = total_counts(run, nodes)
    channel = Channel(spread, routes_of(plan), fleet_delivery(BAD), seed=5)
    lost = int((~channel.heard(TRAINING, 0, steps) & wanted(spread)).sum())
    assert counts["unheard"] >= lost * (1 - counts["left_out"] / steps)
    assert len(outcome.losses) + nodes[plan.source].counts.get("left_out", 0) == steps
    assert timeline.step_ends[-1] - timeline.step_ends[0] >= 0.025 * 7 * (steps - 2)


def test_answers_are_those_of_the_masks(swarm: LocalFleet) -> None:
    spread = mix_mapped(PRR, WIDTHS)
    trained = plan_of(spread, plan_routes("subpath", PRR, spread))
    plan = msgspec.structs.replace(trained, mode="infer")
    with coordinator(swarm, plan) as run:
        run.prepare()
        outcome = run.steps(0, 4)
    net, _ = simulated(trained, 0)
    channel = Channel(spread, routes_of(plan), fleet_delivery(BAD), seed=5, dtype=torch.float64)
    x = torch.stack([data(step)[0] for step in range(4)])
    expected = net.logits(x, channel.masks(TESTING, 0, 4))
    for step in range(4):
        (answer,) = outcome.answers[step, 0].values()
        torch.testing.assert_close(answer, expected[step], atol=1e-6, rtol=0)


def test_training_by_name_on_nodes_that_are_there_draws_no_losses(swarm: LocalFleet) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    result = weft.train(
        model, (torch.rand(40, 6), torch.randint(3, (40,))), nn.CrossEntropyLoss(), fleet=BAD,
        strategy="stitchnet", steps=6, batch=8, optimizer="adam", join=swarm.endpoint,
        group=swarm.group, options={"slot_ms": 40},
    )  # fmt: skip
    assert result.plan.swarm is not None
    assert result.predicted_step_s == pytest.approx(0.04 * 5)
    radio, messages = result.radio, len(result.plan.swarm.messages)
    assert radio["messages"] == messages * 6 or radio["left_out"]
    assert radio["packets_lost"] == 0
    assert radio["heard"] > 0
    assert train_document(result)["radio"]["heard"] == radio["heard"]
    assert "not heard in time" in render(train_table(result))


class Once:
    """Does something when a few minibatches are done, and something else when that has shown."""

    def __init__(self, act: Callable[[], None], then: Callable[[Outcome], None]) -> None:
        self.act, self.then, self.done = act, then, False

    def __call__(self, outcome: Outcome) -> None:
        if not self.done and min(outcome.done.values()) >= 5:
            self.done = True
            self.act()
        elif self.done:
            self.then(outcome)


def test_while_the_coordinator_device_is_silent_the_others_go_on(swarm: LocalFleet) -> None:
    spread = mix_mapped(PRR, WIDTHS)
    plan = plan_of(spread, plan_routes("subpath", PRR, spread), slot_ms=10.0)
    pid = swarm.processes[plan.source].pid
    steps = 60
    with coordinator(swarm, plan) as run:
        run.prepare()

        def wake(outcome: Outcome) -> None:
            if any(event["kind"] == "device_silent" for event in run.events):
                os.kill(pid, signal.SIGCONT)

        try:
            outcome = run.steps(0, steps, Once(lambda: os.kill(pid, signal.SIGSTOP), wake))
        finally:
            os.kill(pid, signal.SIGCONT)
        _, nodes = run.timeline()
    assert [event["kind"] for event in run.events] == ["device_silent", "device_back"]
    assert {event["device"] for event in run.events} == {plan.source}
    left_out = nodes[plan.source].counts["left_out"]
    assert left_out > 0
    assert len(outcome.losses) == steps - left_out
    assert max(outcome.losses) == steps - 1, "it takes up again"
    others = [counts.counts for device, counts in nodes.items() if device != plan.source]
    assert all(counts.get("left_out", 0) < left_out for counts in others)


def test_killed_devices_are_replaced_by_clones_of_the_record(swarm: LocalFleet) -> None:
    """Last of all: it takes two of the nodes."""
    spread = mix_mapped(PRR, WIDTHS)
    plan = plan_of(spread, plan_routes("subpath", PRR, spread))
    names = plan.fleet.names
    dying = [names[spread.horizontal[0]], names[spread.vertical[0]]]
    steps = 40
    with coordinator(swarm, plan) as run:
        run.prepare()
        kill = Once(lambda: [swarm.kill(d) for d in dying] and None, lambda _: None)
        outcome = run.steps(0, steps, kill)
        state, _ = run.collect()
        _, nodes = run.timeline()
    kinds = [event["kind"] for event in run.events]
    assert kinds[0] == "device_lost"
    assert kinds[-1] == "recovered"
    assert {e["device"] for e in run.events if e["kind"] == "device_lost"} == set(dying)
    assert run.plan.version >= 1
    assert set(nodes) == set(names) - set(dying)
    assert max(outcome.losses) == steps - 1
    assert len(outcome.losses) > steps / 2
    owned = spread_of(run.plan)
    lost = [names.index(d) for d in dying]
    moved = []
    for layer, (before, after) in enumerate(zip(spread.owners, owned.owners, strict=True)):
        assert not np.isin(after, lost).any()
        for unit in np.flatnonzero(np.isin(before, lost) & (after >= 0)):
            weight = state[f"{2 * layer}.weight"][unit]
            moved.append(not torch.equal(weight, MODEL[2 * layer].weight.detach()[unit]))
    assert any(moved), "clones go on learning; most units of so small a network are dead"
    horizontal = [u for layer in range(3) for u in spread.units(lost[0], layer)]
    assert sum(e["cloned"] for e in run.events if e["kind"] == "recovered") >= len(horizontal)
    with pytest.raises(WeftError, match=r"is lost: it has the samples|is gone"):
        _kill_the_coordinator(swarm, run.plan)


def _kill_the_coordinator(local: LocalFleet, plan: Plan) -> None:
    with coordinator(local, plan) as run:
        run.prepare()
        run.steps(0, 1_000_000, Once(lambda: local.kill(plan.source), lambda _: None))
