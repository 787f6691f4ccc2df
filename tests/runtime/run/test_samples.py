"""Hybrid training computes what one process computes, whoever has which samples and layers."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from weft import zoo
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.plan import Part, Plan, Shard
from weft.program.lower.layout import layout_of
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.jobs import Settings
from weft.runtime.run.run import Run
from weft.runtime.wire import messages as msg
from weft.simulate.price import price

Subject = Any
RunPlan = Callable[..., Any]
STEPS = 20
BATCH = 12
SGD, MOMENTUM, ADAM = Optimizer("sgd", 0.05), Optimizer("momentum", 0.02), Optimizer("adam", 0.001)
EAGER: dict[str, Any] = {"schedule": "eager", "micro_batches": 4, "stream": True}
ROLES = list(permutations(("cloud", "pi", "nuc")))  # o, s, l


def hiertrain(
    subject: Subject, roles: tuple[str, ...], cuts: tuple[int, int], shares: tuple[int, int, int],
    **fields: Any,
) -> Plan:  # fmt: skip
    """Roles o, s, l; cuts m_s, m_l; shares b_s, b_o, b_l. A lane without samples is left out."""
    o, s, l = roles  # noqa: E741
    last, shards, offset = subject.last, [], 0
    lanes = ((s, cuts[0], shares[0]), (o, last + 1, shares[1]), (l, cuts[1], shares[2]))
    for device, cut, samples in lanes:
        part = Part(samples, offset)
        if samples:
            shards.append(Shard(device, (0, cut - 1), part))
        if samples and cut <= last:
            shards.append(Shard(o, (cut, last), part))
        offset += samples
    plan: Plan = subject.plan(**fields)
    return msgspec.structs.replace(plan, shards=tuple(shards), batch=offset)


@pytest.fixture(scope="module")
def dense(make_subject: Callable[..., Subject]) -> Subject:
    """Smooth on purpose: at a kink (ReLU, max-pooling) a rounding error of 1e-8 may decide which way a
    gradient goes, and adam makes a step of full size from the difference."""
    torch.manual_seed(0)
    sizes, layers = (20, 24, 16, 18, 10), []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return make_subject(nn.Sequential(*layers[:-1]), (20,), BATCH)


@pytest.fixture(scope="module")
def lenet(make_subject: Callable[..., Subject]) -> Subject:
    """With ReLU and max-pooling; this seed and this data meet no tie within the steps below."""
    torch.manual_seed(0)
    return make_subject(zoo.build("lenet5"), (1, 28, 28), BATCH)


@dataclass(frozen=True)
class Alone:
    state: dict[str, Tensor]
    losses: list[float]


@pytest.fixture(scope="module")
def alone() -> Callable[[Subject, Optimizer], Alone]:
    """Plain training in this process; computed once for each network and optimizer."""
    known: dict[Any, Alone] = {}

    def train(subject: Subject, rule: Optimizer) -> Alone:
        key = (id(subject), repr(rule))
        if key not in known:
            module = copy.deepcopy(subject.module).train()
            optimizer = rule.build(list(module.parameters()))
            losses = []
            for step in range(STEPS):
                x, y = subject.data(step)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(x), y)
                torch.autograd.backward(loss)
                optimizer.step()
                losses.append(loss.item())
            known[key] = Alone({n: t.detach() for n, t in module.state_dict().items()}, losses)
        return known[key]

    return train


def far(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert set(found) == set(expected)
    return max(float((found[n].double() - t.double()).abs().max()) for n, t in expected.items())


SPLITS: dict[str, tuple[tuple[int, int], tuple[int, int, int]]] = {
    "three unequal shares": ((1, 3), (5, 4, 3)),
    "b_s = 0": ((1, 3), (0, 7, 5)),
    "b_l = 0": ((2, 3), (7, 5, 0)),
    "b_o = 0": ((1, 3), (7, 0, 5)),
    "m_s = m_l": ((2, 2), (3, 4, 5)),
    "m_l = N": ((1, 4), (3, 4, 5)),
    "m_s = m_l = N": ((4, 4), (3, 4, 5)),
    "one sample each": ((1, 2), (1, 10, 1)),
}


def check(ran: Any, expected: Alone) -> None:
    assert far(ran.state, expected.state) <= 1e-5
    losses = [ran.outcome.losses[step] for step in range(STEPS)]
    assert losses == pytest.approx(expected.losses, abs=1e-5)


@pytest.mark.parametrize("roles", ROLES, ids=">".join)
@pytest.mark.parametrize("split", SPLITS)
def test_hybrid_training_is_plain_training_whoever_has_which_role(
    split: str, roles: tuple[str, ...], dense: Subject, run_plan: RunPlan,
    alone: Callable[..., Alone],
) -> None:  # fmt: skip
    plan = hiertrain(dense, roles, *SPLITS[split])
    check(run_plan(dense, plan, STEPS, optimizer=SGD), alone(dense, SGD))


@pytest.mark.parametrize("rule", [MOMENTUM, ADAM], ids=lambda rule: rule.name)
@pytest.mark.parametrize("split", ["three unequal shares", "b_o = 0", "m_s = m_l = N"])
@pytest.mark.parametrize("fields", [{}, EAGER], ids=["staged", "eager"])
def test_every_copy_makes_the_same_step_of_any_optimizer(
    fields: dict[str, Any], split: str, rule: Optimizer, dense: Subject, run_plan: RunPlan,
    alone: Callable[..., Alone],
) -> None:  # fmt: skip
    plan = hiertrain(dense, ("cloud", "pi", "nuc"), *SPLITS[split], **fields)
    check(run_plan(dense, plan, STEPS, optimizer=rule), alone(dense, rule))


@pytest.mark.parametrize("split", SPLITS)
def test_eager_pieces_that_stream_their_gradients_are_plain_training(
    split: str, dense: Subject, run_plan: RunPlan, alone: Callable[..., Alone]
) -> None:
    plan = hiertrain(dense, ("nuc", "pi", "cloud"), *SPLITS[split], **EAGER)
    assert len(layout_of(plan).pieces) >= 4
    check(run_plan(dense, plan, STEPS, optimizer=SGD), alone(dense, SGD))


@pytest.mark.parametrize("fields", [{}, EAGER], ids=["staged", "eager"])
def test_a_convolutional_network_is_trained_the_same_way(
    fields: dict[str, Any], lenet: Subject, run_plan: RunPlan, alone: Callable[..., Alone]
) -> None:
    plan = hiertrain(lenet, ("cloud", "pi", "nuc"), (1, 3), (5, 4, 3), **fields)
    check(run_plan(lenet, plan, STEPS, optimizer=SGD), alone(lenet, SGD))


def test_lanes_that_come_back_to_the_source_find_their_labels(
    dense: Subject, run_plan: RunPlan, alone: Callable[..., Alone]
) -> None:
    """Out and home and out again: the labels left with the first message only."""
    shards = [Shard(d, (n, n), Part(5, 0)) for n, d in enumerate(("nuc", "pi", "nuc", "nuc"))]
    shards += [Shard(d, (n, n), Part(7, 5)) for n, d in enumerate(("pi", "cloud", "pi", "cloud"))]
    plan = msgspec.structs.replace(dense.plan(), shards=tuple(shards))
    check(run_plan(dense, plan, STEPS, optimizer=SGD), alone(dense, SGD))


def test_a_source_without_layers_feeds_all_lanes(
    dense: Subject, run_plan: RunPlan, alone: Callable[..., Alone]
) -> None:
    shards = [Shard("nuc", (0, 1), Part(5, 0)), Shard("cloud", (2, 3), Part(5, 0))]
    shards += [Shard("cloud", (0, 3), Part(7, 5))]
    for ahead in (1, 2):
        plan = msgspec.structs.replace(dense.plan(ahead=ahead), shards=tuple(shards))
        check(run_plan(dense, plan, STEPS, optimizer=SGD), alone(dense, SGD))


# --- copies of weights ---------------------------------------------------------------------------


@pytest.fixture
def copies(nodes: LocalFleet) -> Callable[..., dict[str, dict[str, Tensor]]]:
    def run(
        subject: Subject, plan: Plan, steps: int, **changes: Any
    ) -> dict[str, dict[str, Tensor]]:
        """Trains, and gives each device's own weights and buffers."""
        wanted = replace(
            Settings(shaping="fabric", scratch=nodes.scratch, same_clock=True), **changes
        )
        with Run(
            nodes.crew, plan, subject.graph, subject.state(), wanted, subject.feed
        ) as run_of_plan:
            run_of_plan.prepare()
            run_of_plan.steps(0, steps)
            asked = {device: msg.GetState(run_of_plan.run_id) for device in plan.devices}
            replies = nodes.crew.ask_all(asked, 10.0)
        return {device: dict(_tensors(pieces)) for device, pieces in replies.items()}

    return run


def _tensors(pieces: Any) -> Iterator[tuple[str, Tensor]]:
    for piece in pieces:
        if not piece.optimizer:
            yield from load_safetensors(piece.data).items()


def widest_gap(found: dict[str, dict[str, Tensor]], names: set[str]) -> float:
    """Between any two devices' copies of one of these tensors; there must be some with copies."""
    held = Counter(name for state in found.values() for name in state if name in names)
    assert set(held) == names
    assert max(held.values()) == 3
    return max(
        float((one[name] - other[name]).abs().max())
        for name in names
        for one in found.values() for other in found.values() if name in one and name in other
    )  # fmt: skip


@pytest.mark.parametrize("fields", [{}, EAGER], ids=["staged", "eager"])
@pytest.mark.parametrize("rule", [SGD, ADAM], ids=lambda rule: rule.name)
@pytest.mark.parametrize("codec", ["none", "fp16", "int8"])
def test_all_copies_of_a_weight_stay_identical_however_gradients_are_coded(
    codec: str, rule: Optimizer, fields: dict[str, Any], dense: Subject,
    copies: Callable[..., dict[str, dict[str, Tensor]]],
) -> None:  # fmt: skip
    """Who adds up knows the exact sum, the others its coded form; all must use the same."""
    plan = hiertrain(
        dense, ("cloud", "pi", "nuc"), (2, 3), (5, 4, 3), gradient_codec=codec, **fields
    )
    found = copies(dense, plan, STEPS, optimizer=rule)
    assert widest_gap(found, set(dense.state())) == 0.0
    moved = far(found["cloud"], dense.state())
    assert moved > 1e-3, "nothing was learned"


@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_coded_gradients_lead_about_where_exact_ones_lead(
    codec: str, dense: Subject, run_plan: RunPlan, alone: Callable[..., Alone]
) -> None:
    roles, split = ("cloud", "pi", "nuc"), SPLITS["three unequal shares"]
    ran = run_plan(
        dense, hiertrain(dense, roles, *split, gradient_codec=codec), STEPS, optimizer=SGD
    )
    expected = alone(dense, SGD)
    assert 0.0 < far(ran.state, expected.state) <= 0.02 * far(dense.state(), expected.state)


def test_images_of_256_levels_lose_nothing_by_8_bits(lenet: Subject, run_plan: RunPlan) -> None:
    levels = Levels(lenet)
    losses = {}
    for codec in ("none", "int8"):
        plan = hiertrain(lenet, ("cloud", "nuc", "pi"), (1, 3), (5, 4, 3), input_codec=codec)
        losses[codec] = run_plan(levels, plan, 1, optimizer=SGD).outcome.losses[0]
    assert losses["int8"] == pytest.approx(losses["none"], rel=1e-6)


class Levels:
    """The same network on images as cameras give them: 256 levels between 0 and 1, both in use."""

    def __init__(self, subject: Subject) -> None:
        self.graph, self.state, self._inner = subject.graph, subject.state, subject

    def feed(self, step: int) -> tuple[dict[str, Tensor], Tensor | None]:
        inputs, target = self._inner.feed(step)
        generator = torch.Generator().manual_seed(step)
        found = {}
        for name, x in inputs.items():
            image = torch.randint(0, 256, x.shape, generator=generator)
            image[:, :, 0, 0], image[:, :, 0, 1] = 0, 255
            found[name] = image / 255
        return found, target


# --- batch norm ----------------------------------------------------------------------------------


def test_batch_norm_has_the_statistics_of_each_piece_and_the_weights_of_all(
    make_subject: Callable[..., Subject], run_plan: RunPlan,
    copies: Callable[..., dict[str, dict[str, Tensor]]],
) -> None:  # fmt: skip
    """As with micro-batches, every piece is normalised by its own statistics. The reference runs the
    lanes one after the other in one process and adds up their gradients, weighted by samples. Running
    statistics are those of the device with the last layer, of the samples that it has seen there.
    """
    torch.manual_seed(0)
    subject = make_subject(zoo.build("resnet8", (1, 12, 12)), (1, 12, 12), BATCH)
    cuts, shares = (2, 4), (5, 4, 3)
    plan = hiertrain(subject, ("cloud", "pi", "nuc"), cuts, shares)
    module = copy.deepcopy(subject.module).train()
    x, y = subject.data(0)
    optimizer = SGD.build(list(module.parameters()))
    optimizer.zero_grad()
    # the cloud's own samples first (it waits for no link), those of pi, those of nuc; after each,
    # the layers that it computes for no more samples have their statistics
    b_s, b_o = shares[0], shares[0] + shares[1]
    spans = (
        (slice(b_s, b_o), (0, cuts[0] - 1)),
        (slice(0, b_s), (cuts[0], cuts[1] - 1)),
        (slice(b_o, BATCH), (cuts[1], subject.last)),
    )
    expected: dict[str, Tensor] = {}
    for rows, layers in spans:
        share = len(y[rows]) / BATCH
        torch.autograd.backward(nn.functional.cross_entropy(module(x[rows]), y[rows]) * share)
        buffers = dict(module.named_buffers())
        for name in subject.graph.segment(*layers).state:
            if name in buffers:
                expected[name] = buffers[name].clone()
    optimizer.step()
    expected |= {name: tensor.detach() for name, tensor in module.named_parameters()}
    assert any("running_mean" in name for name in expected)
    ran = run_plan(subject, plan, 1, optimizer=SGD)
    assert far(ran.state, expected) <= 1e-5
    found = copies(subject, plan, STEPS, optimizer=SGD)
    assert widest_gap(found, {name for name, _ in module.named_parameters()}) == 0.0


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, EAGER], ids=["staged", "eager"])
@pytest.mark.parametrize("split", ["three unequal shares", "b_o = 0", "m_l = N"])
def test_the_bytes_on_every_link_are_the_predicted_ones(
    split: str, fields: dict[str, Any], dense: Subject, run_plan: RunPlan
) -> None:
    steps = 3
    plan = hiertrain(dense, ("cloud", "pi", "nuc"), *SPLITS[split], **fields)
    ran = run_plan(dense, plan, steps, optimizer=SGD)
    found: Counter[str] = Counter()
    for span in ran.timeline.spans:
        if span.what == "transfer":
            found[span.where] += span.bytes
    predicted = price(plan).transfer_bytes
    assert {k: v for k, v in found.items() if v} == {
        channel: steps * size for channel, size in predicted.items() if size
    }
