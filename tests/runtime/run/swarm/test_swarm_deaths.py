"""Devices of a swarm that fall silent or die: the others go on, also without the coordinator."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
from weft.draws import TESTING, TRAINING
from weft.errors import WeftError
from weft.fleet.radio import fleet_delivery
from weft.graph.split.masked import Perceptron
from weft.plans.plan import Plan
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.outcome import Outcome
from weft.runtime.run.run import Run
from weft.strategies.stitchnet.mapping import elect, mix_mapped
from weft.strategies.stitchnet.paths import packets, plan_routes
from weft.strategies.stitchnet.search import best_spread
from weft.strategies.stitchnet.swarm import spread_of


def mixed(subject: Any, **more: Any) -> Plan:
    spread = mix_mapped(subject.prr, subject.widths)
    plan: Plan = subject.plan(spread, plan_routes("subpath", subject.prr, spread), **more)
    return plan


class Remembering(Run):
    """Keeps what every plan of the run began with."""

    def prepare(self, optimizer_state: Mapping[str, Tensor] | None = None) -> None:
        super().prepare(optimizer_state)
        self.begun_with = dict(self.initial), dict(optimizer_state or {})


def test_while_the_coordinator_device_is_silent_the_others_go_on(
    swarm: LocalFleet, perceptron: Any, once: Any
) -> None:
    plan = mixed(perceptron, slot_ms=10.0)
    pid = swarm.processes[plan.source].pid
    steps = 60
    with perceptron.coordinator(swarm, plan) as run:
        run.prepare()

        def wake(outcome: Outcome) -> None:
            if any(event["kind"] == "device_silent" for event in run.events):
                os.kill(pid, signal.SIGCONT)

        try:
            outcome = run.steps(0, steps, once(lambda: os.kill(pid, signal.SIGSTOP), wake))
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


def test_killed_devices_are_replaced_by_clones_of_the_record(
    swarm: LocalFleet, perceptron: Any, once: Any
) -> None:
    plan = mixed(perceptron)
    names, spread = plan.fleet.names, mix_mapped(perceptron.prr, perceptron.widths)
    dying = [names[spread.horizontal[0]], names[spread.vertical[0]]]
    steps = 40
    with perceptron.coordinator(swarm, plan) as run:
        run.prepare()
        outcome = run.steps(0, steps, once(lambda: [swarm.kill(d) for d in dying] and None))
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
            moved.append(not torch.equal(weight, perceptron.model[2 * layer].weight.detach()[unit]))
    assert any(moved), "clones go on learning; most units of so small a network are dead"
    horizontal = [u for layer in range(3) for u in spread.units(lost[0], layer)]
    assert sum(e["cloned"] for e in run.events if e["kind"] == "recovered") >= len(horizontal)


def go_on(subject: Any, run: Remembering, first: int, last: int) -> tuple[Perceptron, list[float]]:
    """The masked form from what the run's last plan began with: weights, memory, minibatch."""
    state, memory = run.begun_with
    net = subject.masked(state)
    assert isinstance(net, Perceptron)
    masks = subject.channel(run.plan).masks(TRAINING, first, last - first)
    named = {f"{name}.weight": w for name, w in zip(subject.layers, net.weights, strict=True)}
    named |= {f"{name}.bias": b for name, b in zip(subject.layers, net.biases, strict=True)}
    grads = [*net.weight_grads, *net.bias_grads]
    # One by one: a device may have been an update ahead of another when both stopped.
    adam = torch.optim.Adam(list(named.values()), lr=1e-3)
    for name, tensor in named.items():
        adam.state[tensor] = {
            key: memory[f"{name}/{key}"].clone() for key in ("step", "exp_avg", "exp_avg_sq")
        }
    losses = []
    for step in range(first, last):
        losses.append(float(net.gradients(*subject.data(step), masks.at(step - first))))
        for tensor, grad in zip(named.values(), grads, strict=True):
            tensor.grad = grad
        adam.step()
    return net, losses


@pytest.mark.parametrize("strategy", ["stitchnet", "stitchnet+"])
def test_when_the_coordinator_dies_the_next_by_score_takes_over_and_learns_on(
    swarm: LocalFleet, perceptron: Any, once: Any, strategy: str
) -> None:
    plan, budget = mixed(perceptron), 0
    if strategy == "stitchnet+":
        found = best_spread(perceptron.prr, perceptron.widths, 60)
        budget = packets(found.routes)
        plan = perceptron.plan(found.spread, found.routes, budget=budget)
    dead, steps = plan.source, 60
    with perceptron.coordinator(swarm, plan, kind=Remembering) as run:
        run.prepare()
        outcome = run.steps(0, steps, once(lambda: swarm.kill(dead)))
        state, _ = run.collect()
        _, nodes = run.timeline()
    names = plan.fleet.names
    left = [n for n, name in enumerate(names) if name != dead]
    heir = names[elect(perceptron.prr, left)]
    assert [(e["kind"], e.get("device")) for e in run.events] == [
        ("device_lost", dead), ("coordinator_elected", heir), ("recovered", None),
    ]  # fmt: skip
    assert run.plan.source == heir
    assert set(nodes) <= set(names) - {dead}
    before, after = spread_of(plan), spread_of(run.plan)
    if budget:
        assert packets_of(run.plan) <= budget
    else:
        for old, new in zip(before.owners, after.owners, strict=True):
            assert np.array_equal(old, new), "nobody's units had to move"
    change = run.events[-1]["step"]
    net, losses = go_on(perceptron, run, change, steps)
    assert [outcome.losses[s] for s in range(change, steps)] == pytest.approx(losses, abs=1e-6)
    perceptron.same(state, net)
    assert not torch.equal(state["6.weight"], run.begun_with[0]["6.weight"]), "the output learns on"


def test_a_run_on_a_data_set_learns_on_after_its_coordinator_has_died(
    swarm: LocalFleet, perceptron: Any
) -> None:
    """The first coordinator has the set itself; the next gets its samples from the starting process."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(),
                          nn.Linear(24, 10))  # fmt: skip
    first = elect(fleet_delivery(perceptron.fleet))
    dead = perceptron.fleet.names[first]

    def kill(step: Any) -> None:
        if step.done >= 15 and swarm.processes[dead].poll() is None:
            swarm.kill(dead)

    result = weft.train(
        model, "mnist5k", nn.CrossEntropyLoss(), fleet=perceptron.fleet, strategy="stitchnet",
        steps=120, batch=50, optimizer="adam", lr=0.005, join=swarm.endpoint, group=swarm.group,
        on_progress=kill, measure=False,
    )  # fmt: skip
    kinds = [event["kind"] for event in result.events]
    assert kinds == ["device_lost", "coordinator_elected", "recovered"]
    assert result.plan.source == result.events[1]["device"] != dead
    change = result.events[2]["step"]
    assert 15 <= change < 120
    assert np.isfinite(result.losses).all()
    assert np.mean(result.losses[-10:]) < 0.7 * np.mean(result.losses[:10])
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.6


def test_answers_go_on_when_a_device_dies_and_none_is_missing(
    swarm: LocalFleet, perceptron: Any, once: Any
) -> None:
    plan = msgspec.structs.replace(mixed(perceptron), mode="infer")
    steps = 60
    with perceptron.coordinator(swarm, plan) as run:
        run.prepare()
        outcome = run.steps(0, steps, once(lambda: swarm.kill(plan.source)))
    assert [event["kind"] for event in run.events] == [
        "device_lost", "coordinator_elected", "recovered",
    ]  # fmt: skip
    change, net = run.events[-1]["step"], perceptron.masked()
    assert 5 < change < steps
    x = torch.stack([perceptron.data(step)[0] for step in range(steps)])
    for used, first, last in ((plan, 0, change), (run.plan, change, steps)):
        masks = perceptron.channel(used).masks(TESTING, first, last - first)
        for step, expected in zip(
            range(first, last), net.logits(x[first:last], masks), strict=True
        ):
            (answer,) = outcome.answers[step, 0].values()
            torch.testing.assert_close(answer, expected, atol=1e-6, rtol=0)


def packets_of(plan: Plan) -> int:
    assert plan.swarm is not None
    return sum(m.direct + 2 * m.relayed for m in plan.swarm.messages)


def test_from_before_the_first_minibatch_until_one_device_is_left_the_run_goes_on(
    swarm: LocalFleet, perceptron: Any, once: Any
) -> None:
    """Last of all: it takes all nodes but one."""
    plan = mixed(perceptron)
    head, left, first, *others = plan.devices
    dying = [head, *others]
    with perceptron.coordinator(swarm, plan) as run:
        run.prepare()
        swarm.kill(first)
        assert max(run.steps(0, 8).losses) == 7
        assert [event["kind"] for event in run.events] == ["device_lost", "recovered"]
        with pytest.raises(WeftError, match=rf"lost.* ({left} is left|the last unit of a layer)"):
            run.steps(8, 1_000_000, once(lambda: [swarm.kill(d) for d in dying] and None))
