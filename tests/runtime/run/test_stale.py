"""Several minibatches in flight compute what a naive one-process simulation of the staleness does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from weft import zoo
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.plan import Part, Shard
from weft.runtime.run.run import Run
from weft.runtime.wire import messages as msg

Subject = Any
RunPlan = Callable[..., Any]
STEPS = 12
RULES = {
    "sgd": Optimizer("sgd", 0.05),
    "momentum": Optimizer("momentum", 0.01),
    "adam": Optimizer("adam", 0.001),
}


@pytest.fixture(scope="module")
def subjects(make_subject: Callable[..., Subject]) -> dict[str, Subject]:
    torch.manual_seed(0)
    return {
        "lenet5": make_subject(zoo.build("lenet5"), (1, 28, 28), 4),
        "batch norm": make_subject(zoo.build("resnet8", (1, 12, 12)), (1, 12, 12), 4),
    }


@pytest.fixture(scope="module")
def smooth(make_subject: Callable[..., Subject]) -> Subject:
    """No kinks: sums in another order differ by rounding, which a kink could make large."""
    torch.manual_seed(0)
    sizes, layers = (20, 24, 16, 18, 10), []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return make_subject(nn.Sequential(*layers[:-1]), (20,), 6)


def stale_reference(
    subject: Subject, rule: Optimizer, stages: Sequence[tuple[int, int, int]]
) -> dict[str, Tensor]:
    """Plain Python, one process. Stages are (first layer, last layer, how many updates old the weights
    are that a minibatch meets there); all versions of all weights are kept."""
    module = copy.deepcopy(subject.module).train()
    live = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    parts = []
    for first, last, lag in stages:
        names = [n for n in subject.graph.layer_state(first, last) if n in live]
        parts.append((names, lag, rule.build([live[n] for n in names])))
    history = [{n: p.detach().clone() for n, p in live.items()}]
    for step in range(STEPS):
        met = {}
        for names, lag, _ in parts:
            old = history[max(0, step - lag)]
            met |= {n: old[n].clone().requires_grad_() for n in names}
        x, y = subject.data(step)
        output = torch.func.functional_call(module, {**met, **buffers}, (x,))
        nn.functional.cross_entropy(output, y).backward()
        for names, _, optimizer in parts:
            for name in names:
                live[name].grad = met[name].grad
            optimizer.step()
        history.append({n: p.detach().clone() for n, p in live.items()})
    return {n: t.detach() for n, t in (*live.items(), *buffers.items())}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        worst = float((found[name].double() - tensor.double()).abs().max())
        assert worst <= 1e-6, f"{name} is {worst} off"


@pytest.mark.parametrize("network", ["lenet5", "batch norm"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_k_in_flight_equal_a_naive_simulation_of_the_same_staleness(
    network: str, rule: str, k: int, subjects: dict[str, Subject], run_plan: RunPlan
) -> None:
    subject = subjects[network]
    cut, last = 2, subject.last
    plan = subject.plan(("pi", 0, cut - 1), ("cloud", cut, last), stale=k - 1)
    ran = run_plan(subject, plan, STEPS, optimizer=RULES[rule])
    same(ran.state, stale_reference(subject, RULES[rule], [(0, cut - 1, k - 1), (cut, last, 0)]))
    if k == 1:  # and that is plain training
        same(ran.state, stale_reference(subject, RULES[rule], [(0, last, 0)]))


@pytest.mark.parametrize("network", ["lenet5", "batch norm"])
def test_three_stages_are_stale_by_their_place(
    network: str, subjects: dict[str, Subject], run_plan: RunPlan
) -> None:
    subject = subjects[network]
    last, rule = subject.last, RULES["momentum"]
    plan = subject.plan(("pi", 0, 0), ("nuc", 1, 2), ("cloud", 3, last), stale=4)
    ran = run_plan(subject, plan, STEPS, optimizer=rule)
    same(ran.state, stale_reference(subject, rule, [(0, 0, 4), (1, 2, 2), (3, last, 0)]))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_labels_can_stay_home(k: int, subjects: dict[str, Subject], run_plan: RunPlan) -> None:
    """Client, worker, client: the last layer and the loss are at home."""
    subject = subjects["batch norm"]
    last, rule, stale = subject.last, RULES["momentum"], k - 1
    plan = subject.plan(("pi", 0, 1), ("cloud", 2, last - 1), ("pi", last, last), stale=stale)
    ran = run_plan(subject, plan, STEPS, optimizer=rule)
    stages = [(0, 1, stale), (2, last - 1, stale // 2), (last, last, 0)]
    same(ran.state, stale_reference(subject, rule, stages))


def lanes(*shards: tuple[str, int, int, int, int]) -> tuple[Shard, ...]:
    """Shards as (device, first layer, last layer, samples, offset)."""
    return tuple(Shard(d, (a, b), Part(samples, offset)) for d, a, b, samples, offset in shards)


@pytest.mark.parametrize("fields", [{}, {"schedule": "eager", "micro_batches": 3, "stream": True}],
                         ids=["staged", "eager"])  # fmt: skip
def test_shares_of_samples_meet_weights_of_the_same_age_wherever_they_go(
    fields: dict[str, Any], smooth: Subject, run_plan: RunPlan
) -> None:
    """HierTrain with two updates of staleness: pi has layer 0, nuc layers 0 and 1, cloud all."""
    last, rule = smooth.last, RULES["momentum"]
    shards = lanes(
        ("pi", 0, 0, 2, 0), ("cloud", 1, last, 2, 0), ("cloud", 0, last, 3, 2),
        ("nuc", 0, 1, 1, 5), ("cloud", 2, last, 1, 5),
    )  # fmt: skip
    plan = msgspec.structs.replace(smooth.plan(stale=2, **fields), shards=shards)
    ran = run_plan(smooth, plan, STEPS, optimizer=rule)
    same(ran.state, stale_reference(smooth, rule, [(0, 1, 2), (2, last, 0)]))


def test_pieces_of_a_minibatch_meet_the_same_stale_weights(
    smooth: Subject, run_plan: RunPlan
) -> None:
    """Three pieces, two in flight, and a source that only feeds."""
    last, rule = smooth.last, RULES["adam"]
    plan = smooth.plan(
        ("nuc", 0, 1), ("cloud", 2, last), stale=2, micro_batches=3, in_flight=2, ahead=2
    )
    ran = run_plan(smooth, plan, STEPS, optimizer=rule)
    same(ran.state, stale_reference(smooth, rule, [(0, 1, 2), (2, last, 0)]))


@pytest.mark.parametrize("rule", RULES)
def test_a_device_that_stands_by_has_the_holders_weights_buffers_and_optimizer(
    rule: str, subjects: dict[str, Subject], run_plan: RunPlan
) -> None:
    subject = subjects["batch norm"]
    last = subject.last
    plan = subject.plan(
        ("pi", 0, 1), ("nuc", 2, last), stale=1, standby=(Shard("cloud", (2, last)),)
    )
    states: dict[str, list[dict[str, Tensor]]] = {}

    def look(run: Run) -> None:
        run.steps(0, STEPS)
        for device in ("nuc", "cloud"):
            pieces = run.crew.ask(device, msg.GetState(run.run_id), 10.0)
            found: list[dict[str, Tensor]] = [{}, {}]
            for piece in pieces:
                assert isinstance(piece, msg.StatePiece)
                found[piece.optimizer] |= load_safetensors(piece.data)
            states[device] = found

    run_plan(subject, plan, STEPS, optimizer=RULES[rule], between=look)
    for kind in (0, 1):
        mine, theirs = states["nuc"][kind], states["cloud"][kind]
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[n], theirs[n]) for n in mine)
    assert any("running_mean" in n for n in states["cloud"][0])
