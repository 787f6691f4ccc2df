"""What one process computes is the measure of real runs; here that measure itself is checked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from torch import Tensor

import weft
from weft.fleet.fleet import Device, Fleet, Link
from weft.loom.draw import Draw
from weft.loom.networks import Net, graph_of, loss_of, minibatch, module_of
from weft.loom.reference import rule_of, train_alone
from weft.plans.plan import Plan

STEPS, MIDDLE = 6, 3
FLEET = Fleet(
    (Device("pi", gflops=50.0, data=True), Device("nuc", tier="edge", gflops=60.0)),
    (Link(("pi", "nuc"), 1000.0, 1000.0),),
)
DRAW = Draw(
    net=Net("dense", 3, 1, (6,), 3), fleet=FLEET, strategy="edgemove", batch=4, optimizer="momentum"
)


def _plan(cut: int) -> Plan:
    """Layers 0 to cut-1 at the client, three minibatches in flight."""
    plan = weft.plan(
        module_of(DRAW.net), torch.zeros(2, 6), FLEET, strategy=DRAW.strategy, batch=DRAW.batch,
        options={"in_flight": "3"}, optimizer=DRAW.optimizer,
    )  # fmt: skip
    client, worker = plan.shards
    end = len(plan.profile.layers) - 1
    shards = (
        msgspec.structs.replace(client, layers=(0, cut - 1)),
        msgspec.structs.replace(worker, layers=(cut, end)),
    )
    return msgspec.structs.replace(plan, shards=shards)


def _data(step: int) -> tuple[Tensor, Tensor]:
    return minibatch(DRAW.net, DRAW.loss, DRAW.batch, DRAW.seed, step)


def test_a_run_resumed_with_another_cut_has_weights_of_the_ages_of_both_plans(
    tmp_path: Path, one_thread: None
) -> None:
    """Seen: a resumed run measured the devices anew, cut elsewhere, and was taken for wrong."""
    plans = {0: _plan(1), MIDDLE: _plan(2)}
    for begin, plan in plans.items():
        result = weft.train(
            module_of(DRAW.net), _data, loss_of(DRAW.loss), plan=plan, batch=DRAW.batch,
            optimizer=rule_of(DRAW), local=True, adapt=False, out=tmp_path / "run",
            steps=STEPS if begin else MIDDLE, resume=bool(begin),
        )  # fmt: skip
    trained = {name: tensor.detach() for name, tensor in result.model.state_dict().items()}
    graph = graph_of(DRAW.net)

    def off(parts: dict[int, Plan]) -> float:
        alone = train_alone(DRAW, parts, graph, STEPS)
        return max(float((trained[name] - tensor).abs().max()) for name, tensor in alone.items())

    assert off(plans) < 1e-6
    assert off({0: plans[MIDDLE]}) > 1e-4 < off({0: plans[0]})
