"""A spread network on real processes: equal to the masked form under the same losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft.draws import TESTING, TRAINING
from weft.fleet.fleet import Fleet, Link
from weft.graph.capture.module import state_of
from weft.graph.split.lost_values import LostValues
from weft.graph.split.masked import Perceptron
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.delivery import Routes, believed, drills_of
from weft.plans.derive import derive_profile
from weft.reference.copies import output_with_copies
from weft.report.results import train_document, train_table
from weft.report.tables import render
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.measured import total_counts
from weft.runtime.run.recovery.clone import units_weigh
from weft.strategies.stitchnet.copies import copied
from weft.strategies.stitchnet.holders import with_copies
from weft.strategies.stitchnet.mapping import Spread, mix_mapped
from weft.strategies.stitchnet.paths import Path, plan_routes, wanted


@pytest.mark.parametrize("update", ["zero", "own"])
@pytest.mark.parametrize("path", ["direct", "coordinator", "subpath"])
def test_real_devices_compute_what_the_masks_do(
    swarm: LocalFleet, perceptron: Any, path: Path, update: LostValues
) -> None:
    spread = mix_mapped(perceptron.prr, perceptron.widths)
    plan = perceptron.plan(spread, plan_routes(path, perceptron.prr, spread), update=update)
    assert len(perceptron.agree(swarm, plan)) == 5


@pytest.mark.parametrize(
    ("network", "path"),
    [
        ("perceptron", "direct"), ("perceptron", "coordinator"), ("perceptron", "subpath"),
        ("convolutions", "subpath"),
    ],
)  # fmt: skip
def test_a_minibatch_with_any_loss_is_given_up_by_all(
    swarm: LocalFleet, request: pytest.FixtureRequest, network: str, path: Path
) -> None:
    subject = request.getfixturevalue(network)
    bad = subject.fleet
    good = Fleet(  # so good that some minibatches lose nothing
        bad.devices, tuple(Link(link.between, 100.0, 100.0, loss=0.02) for link in bad.link)
    )
    spread = mix_mapped(subject.prr, subject.widths)
    plan = subject.plan(spread, plan_routes(path, subject.prr, spread), good, "none")
    assert 0 < len(subject.agree(swarm, plan, 12)) < 12


def test_packets_sent_twice_other_relays_and_messages_left_out_are_the_same_too(
    swarm: LocalFleet, perceptron: Any
) -> None:
    spread = mix_mapped(perceptron.prr, perceptron.widths)
    asked, n = wanted(spread), spread.devices
    random = np.random.RandomState(1)
    direct, relayed = (random.randint(0, 3, asked.shape) * asked for _ in range(2))
    direct[0] = np.maximum(direct[0], asked[0])  # the samples reach whoever needs them
    via = np.array([[next(k for k in (3, 1, 4) if k not in (i, j)) for j in range(n)]
                    for i in range(n)])  # fmt: skip
    perceptron.agree(swarm, perceptron.plan(spread, Routes(direct, relayed, via)))


def test_a_device_without_units_relays(swarm: LocalFleet, perceptron: Any) -> None:
    """Once such a device was sent home, and what went by it never came."""
    head, one, two, _, relay = range(5)
    owners = tuple(np.repeat([one, two], width // 2) for width in perceptron.widths)
    spread = Spread(5, head, owners)
    asked = wanted(spread)
    plan = perceptron.plan(spread, Routes(0 * asked, 2 * asked, np.full((5, 5), relay)))
    perceptron.agree(swarm, plan)


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("stitchnet", {}),
        ("stitchnet", {"update": "own"}),
        # So few packets that messages get lost; 8 bits would round what is compared to 1e-6.
        ("stitchnet+", {"packets": 18, "codec": "none", "input_codec": "none"}),
        ("vertical", {"path": "direct"}),
        ("horizontal", {"path": "coordinator"}),
        ("random-units", {"update": "own"}),
        ("average-layers", {}),
    ],
)
def test_channels_of_convolutions_are_spread_like_units(
    swarm: LocalFleet, convolutions: Any, strategy: str, more: dict[str, object]
) -> None:
    task = make_task(
        derive_profile(convolutions.graph, convolutions.fleet), convolutions.fleet, batch=6,
        graph=convolutions.graph, optimizer="adam", options={"probes": 50} | more,
    )  # fmt: skip
    assert len(convolutions.agree(swarm, decide(strategy, task), 3)) == 3


def test_stitchnet_plus_learns_in_8_bits_what_it_would_learn_unrounded(
    swarm: LocalFleet, perceptron: Any
) -> None:
    task = make_task(
        derive_profile(perceptron.graph, perceptron.fleet), perceptron.fleet, batch=6,
        graph=perceptron.graph, optimizer="adam", options={"probes": 50},
    )  # fmt: skip
    plan, steps = decide("stitchnet+", task), 5
    assert (plan.codec, plan.input_codec) == ("int8", "int8")
    with perceptron.coordinator(swarm, plan) as run:
        run.prepare()
        outcome = run.steps(0, steps)
    _, losses = perceptron.simulated(plan, steps)
    assert outcome.losses == pytest.approx(losses, rel=0.02)
    assert outcome.losses != pytest.approx(losses, rel=1e-6), "nothing was rounded"


def test_slots_by_the_clock_lose_no_less_than_the_radio(swarm: LocalFleet, perceptron: Any) -> None:
    spread = mix_mapped(perceptron.prr, perceptron.widths)
    plan = perceptron.plan(spread, plan_routes("subpath", perceptron.prr, spread), slot_ms=25.0)
    steps = 6
    with perceptron.coordinator(swarm, plan, shaping="fabric", scratch=swarm.scratch) as run:
        run.prepare()
        outcome = run.steps(0, steps)
        timeline, nodes = run.timeline()
    counts = total_counts(nodes)
    heard = perceptron.channel(plan).heard(TRAINING, 0, steps)
    lost = int((~heard & wanted(spread)).sum())
    assert counts["unheard"] >= lost * (1 - counts["left_out"] / steps)
    assert len(outcome.losses) + nodes[plan.source].counts.get("left_out", 0) == steps
    assert timeline.step_ends[-1] - timeline.step_ends[0] >= 0.025 * 7 * (steps - 2)


@pytest.mark.parametrize("rescaled", [False, True], ids=["plain", "rescaled"])
def test_answers_are_those_of_the_masks(swarm: LocalFleet, perceptron: Any, rescaled: bool) -> None:
    spread = mix_mapped(perceptron.prr, perceptron.widths)
    routes = plan_routes("subpath", perceptron.prr, spread)
    trained = perceptron.plan(spread, routes, rescale=rescaled)
    plan = msgspec.structs.replace(trained, mode="infer")
    with perceptron.coordinator(swarm, plan) as run:
        run.prepare()
        outcome = run.steps(0, 4)
    net = perceptron.masked()
    assert isinstance(net, Perceptron)
    channel = perceptron.channel(plan)
    x = torch.stack([perceptron.data(step)[0] for step in range(4)])
    plain = net.logits(x, channel.masks(TESTING, 0, 4))
    expected = plain
    if rescaled:
        believing = replace(channel, expected=believed(plan))
        expected = net.logits(x, believing.masks(TESTING, 0, 4))
        assert not torch.allclose(plain, expected)
    for step in range(4):
        (answer,) = outcome.answers[step, 0].values()
        torch.testing.assert_close(answer, expected[step], atol=1e-6, rtol=0)


@pytest.mark.parametrize("share", [25, 100])
def test_copies_answer_where_their_owner_is_not_heard(
    swarm: LocalFleet, perceptron: Any, share: int
) -> None:
    spread = mix_mapped(perceptron.prr, perceptron.widths)
    routes = plan_routes("subpath", perceptron.prr, spread)
    norms = units_weigh(perceptron.graph, state_of(perceptron.model))
    planned = perceptron.plan(spread, routes, copied=share)
    plan = copied(msgspec.structs.replace(planned, mode="infer"), norms)
    assert plan.swarm is not None
    assert sum(len(copy.units) for copy in plan.swarm.copies) > 0
    steps = 6
    with perceptron.coordinator(swarm, plan) as run:
        run.prepare()
        outcome = run.steps(0, steps)
        _, nodes = run.timeline()
    channel, net = perceptron.channel(plan), perceptron.masked()
    heard = channel.heard(TESTING, 0, steps)
    x = torch.stack([perceptron.data(step)[0] for step in range(steps)])
    holders = with_copies(spread, norms, share / 100)
    expected = output_with_copies(net, channel, x, holders, heard)
    for step in range(steps):
        (answer,) = outcome.answers[step, 0].values()
        torch.testing.assert_close(answer, expected[step], atol=1e-6, rtol=0)
    without = net.logits(x, channel.masks(TESTING, 0, steps))
    assert not torch.allclose(without, expected), "else nothing was tried"
    assert total_counts(nodes)["messages"] == steps * sum(
        m.slot <= plan.swarm.depth for m in plan.swarm.messages
    )


def test_training_by_name_on_nodes_that_are_there_draws_no_losses(
    swarm: LocalFleet, perceptron: Any
) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    result = weft.train(
        model, (torch.rand(40, 6), torch.randint(3, (40,))), nn.CrossEntropyLoss(),
        fleet=perceptron.fleet, strategy="stitchnet", steps=6, batch=8, optimizer="adam",
        join=swarm.endpoint, group=swarm.group, options={"slot_ms": 40},
        measure=False,
    )  # fmt: skip
    assert result.plan.swarm is not None
    assert result.predicted_step_s == pytest.approx(0.04 * 5)
    radio, messages = result.radio, len(result.plan.swarm.messages)
    assert radio["messages"] == messages * 6 or radio["left_out"]
    assert radio["packets_lost"] == 0
    assert radio["heard"] > 0
    assert train_document(result)["radio"]["heard"] == radio["heard"]
    assert "not heard in time" in render(train_table(result))


@pytest.mark.parametrize("path", ["direct", "subpath"])
def test_drills_leave_the_same_workers_out_of_a_run_and_of_its_reference(
    swarm: LocalFleet, perceptron: Any, path: Any
) -> None:
    """Whoever is left out neither sends, hears nor relays; weights and losses stay equal to 1e-6."""
    spread = mix_mapped(perceptron.prr, perceptron.widths)
    plan = perceptron.plan(spread, plan_routes(path, perceptron.prr, spread), drill=60)
    absent = drills_of(plan).absent(0, 6)
    assert len(set(absent.tolist())) >= 3, "else too little was tried"
    heard = perceptron.channel(plan).heard(TRAINING, 0, 6)
    for step, worker in enumerate(absent.tolist()):
        if worker >= 0:
            others = [d for d in range(5) if d != worker]
            assert not heard[step][:, worker, others].any()
            assert not heard[step][:, others, worker].any()
    perceptron.agree(swarm, plan, 6)
