"""What runs distributed computes what one process computes: weights, buffers and answers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft import zoo
from weft.fleet.fleet import Fleet
from weft.graph.execute import Runner
from weft.graph.optimizers.optimizer import Optimizer
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan
from weft.zoo.transformer import transformer

Subject = Any
RunPlan = Callable[..., Any]
STEPS = 20
RULE = Optimizer("sgd", 0.02)
BY_HAND = {"there and back": ("pi", "cloud", "pi"), "around": ("nuc", "cloud", "nuc")}
SPLITS = ["all-device", "all-edge", "all-cloud", "jointdnn", "jointdnn+", "chain", *BY_HAND]


@pytest.fixture(scope="module")
def subjects(make_subject: Callable[..., Subject]) -> dict[str, Subject]:
    torch.manual_seed(0)
    return {
        "lenet5": make_subject(zoo.build("lenet5"), (1, 28, 28), 4),
        "resnet8": make_subject(zoo.build("resnet8", (1, 12, 12)), (1, 12, 12), 4),
        "transformer": make_subject(transformer((1, 8, 8), 10, dropout=0.0), (1, 8, 8), 4),
        "dropout": make_subject(transformer((1, 8, 8), 10, dropout=0.2), (1, 8, 8), 4),
    }


def plan_of(split: str, subject: Subject, fleet: Fleet, mode: Any, **options: object) -> Plan:
    if split in BY_HAND:
        third = (subject.last + 1) // 3
        ends = (0, third, 2 * third, subject.last + 1)
        plan: Plan = subject.plan(
            *((name, ends[i], ends[i + 1] - 1) for i, name in enumerate(BY_HAND[split])), mode=mode
        )
        return plan
    if split == "chain":
        options = {"devices": "pi,nuc,cloud", **options}
    task = make_task(
        derive_profile(subject.graph, fleet), fleet, batch=subject.batch, mode=mode,
        options={"micro_batches": 1, **options} if split == "chain" else options,
        graph=subject.graph,
    )  # fmt: skip
    return decide(split, task)


@pytest.fixture(scope="module")
def trained_alone() -> Callable[..., dict[str, Tensor]]:
    """The weights and buffers after plain training in this process; computed once each."""
    known: dict[Any, dict[str, Tensor]] = {}

    def train(subject: Subject, rule: Optimizer = RULE) -> dict[str, Tensor]:
        key = (id(subject), repr(rule))
        if key not in known:
            module = copy.deepcopy(subject.module).train()
            optimizer = rule.build(list(module.parameters()))
            for step in range(STEPS):
                x, y = subject.data(step)
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()
            known[key] = {n: t.detach() for n, t in module.state_dict().items()}
        return known[key]

    return train


def same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        worst = float((found[name].double() - tensor.double()).abs().max())
        assert worst <= tolerance, f"{name} is {worst} off"


@pytest.mark.parametrize("network", ["lenet5", "resnet8", "transformer"])
@pytest.mark.parametrize("split", SPLITS)
def test_training_gives_the_weights_of_one_process(
    network: str,
    split: str,
    subjects: dict[str, Subject],
    triangle: Fleet,
    run_plan: RunPlan,
    trained_alone: Callable[..., dict[str, Tensor]],
) -> None:
    subject = subjects[network]
    plan = plan_of(split, subject, triangle, "train")
    if split == "chain":
        assert plan.devices == ("pi", "nuc", "cloud")
    ran = run_plan(subject, plan, STEPS, optimizer=RULE)
    assert sorted(ran.outcome.losses) == list(range(STEPS))
    same(ran.state, trained_alone(subject))


@pytest.mark.parametrize("rule", [
    Optimizer("momentum", 0.01), Optimizer("adam", 0.001),
    Optimizer("adamw", 0.001, weight_decay=0.05),
], ids=lambda rule: rule.name)  # fmt: skip
def test_every_optimizer_runs_where_its_layers_are(
    rule: Optimizer,
    subjects: dict[str, Subject],
    triangle: Fleet,
    run_plan: RunPlan,
    trained_alone: Callable[..., dict[str, Tensor]],
) -> None:
    subject = subjects["lenet5"]
    ran = run_plan(subject, plan_of("chain", subject, triangle, "train"), STEPS, optimizer=rule)
    same(ran.state, trained_alone(subject, rule))


@pytest.mark.parametrize("network", ["lenet5", "transformer"])
def test_a_pipeline_of_four_micro_batches_is_plain_training(
    network: str,
    subjects: dict[str, Subject],
    triangle: Fleet,
    run_plan: RunPlan,
    trained_alone: Callable[..., dict[str, Tensor]],
) -> None:
    subject = subjects[network]
    plan = plan_of("chain", subject, triangle, "train", micro_batches=4, in_flight=3)
    assert plan.micro_batches == 4
    ran = run_plan(subject, plan, STEPS, optimizer=RULE)
    same(ran.state, trained_alone(subject))


@pytest.mark.parametrize("split", ["all-cloud", "chain", "there and back"])
def test_dropout_does_not_depend_on_the_split(
    split: str, subjects: dict[str, Subject], triangle: Fleet, run_plan: RunPlan
) -> None:
    """The reference is one process that runs the captured network with the same seeds."""
    subject, seed = subjects["dropout"], 5
    state = subject.state()
    runner = Runner(subject.graph.segment(0, subject.last, with_loss=True), state)
    optimizer = RULE.build(runner.parameters)
    for step in range(STEPS):
        x, y = subject.data(step)
        drawn = (seed * 1_000_003 + step) * 1_009
        outputs = runner.forward({subject.graph.inputs[0]: x}, training=True, seed=drawn)
        optimizer.zero_grad()
        runner.loss(outputs[subject.graph.output], y, subject.batch).backward()
        optimizer.step()
    plan = plan_of(split, subject, triangle, "train")
    ran = run_plan(subject, plan, STEPS, optimizer=RULE, seed=seed)
    same(ran.state, {n: t.detach() for n, t in state.items()})


@pytest.fixture
def answers(run_plan: RunPlan) -> Callable[[Subject, Plan], None]:
    def check(subject: Subject, plan: Plan) -> None:
        ran = run_plan(subject, plan, 3)
        module = copy.deepcopy(subject.module).eval()
        for step in range(3):
            pieces = [
                ran.outcome.answers[step, m][subject.graph.output]
                for m in range(plan.micro_batches)
            ]
            with torch.no_grad():
                expected = module(subject.data(step)[0])
            torch.testing.assert_close(torch.cat(pieces), expected, rtol=0, atol=1e-5)

    return check


@pytest.mark.parametrize("split", SPLITS)
def test_an_answer_is_that_of_the_whole_network(
    split: str,
    subjects: dict[str, Subject],
    triangle: Fleet,
    answers: Callable[[Subject, Plan], None],
) -> None:
    for network in ("resnet8", "dropout"):
        answers(subjects[network], plan_of(split, subjects[network], triangle, "infer"))


def test_an_answer_in_four_pieces_is_that_of_the_whole_network(
    subjects: dict[str, Subject], triangle: Fleet, answers: Callable[[Subject, Plan], None]
) -> None:
    subject = subjects["resnet8"]
    plan = plan_of("chain", subject, triangle, "infer", micro_batches=4, in_flight=2)
    assert plan.micro_batches == 4
    answers(subject, plan)
