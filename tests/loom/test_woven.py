"""One process executes a program as devices would, also where pieces need sums over all targets."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.optimizers.optimizer import Optimizer
from weft.loom.woven import execute
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.program.lower.lower import lower

STEPS, RATE, BATCH = 3, 0.5, 12
FLEET = Fleet(
    (
        Device("phone", tier="device", gflops=1.0, data=True),
        Device("box", tier="edge", gflops=1.0),
        Device("server", tier="cloud", gflops=1.0),
    ),
    (
        Link(("phone", "box"), 1000.0, 1000.0),
        Link(("phone", "server"), 1000.0, 1000.0),
        Link(("box", "server"), 1000.0, 1000.0),
    ),
)  # fmt: skip
LOSSES = {
    "ignored targets": nn.CrossEntropyLoss(ignore_index=0),
    "class weights": nn.CrossEntropyLoss(weight=torch.tensor([0.1, 2.0, 1.0])),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize(
    ("strategy", "options"), [("chain", {"micro_batches": "4"}), ("hiertrain", {})]
)
def test_pieces_of_a_loss_with_totals_train_as_one_process(
    loss: nn.Module, strategy: str, options: dict[str, str]
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    sets = [(torch.randn(BATCH, 5), torch.randint(0, 3, (BATCH,))) for _ in range(STEPS)]
    for _, target in sets:
        target[:3] = 0  # a piece in which nothing counts
    graph = capture_loss(capture(module, sets[0][0]), loss, sets[0][1])
    assert graph.loss is not None
    assert graph.loss.over == "totals"
    profile = derive_profile(graph, FLEET)
    plan = decide(strategy, make_task(profile, FLEET, batch=BATCH, graph=graph, options=options))
    program = lower(plan)

    def minibatch(step: int) -> tuple[Tensor, Tensor]:
        return sets[step]

    state = state_of(module, loss)
    result = execute(program, graph, state, minibatch, STEPS, Optimizer("sgd", RATE))
    assert result.odd_bytes == []

    eager = copy.deepcopy(module)
    optimizer = torch.optim.SGD(eager.parameters(), RATE)
    for step, (x, y) in enumerate(sets):
        optimizer.zero_grad()
        value = loss(eager(x), y)
        value.backward()
        optimizer.step()
        assert result.losses[step] == pytest.approx(value.item(), abs=1e-6)
    for name, tensor in eager.state_dict().items():
        assert torch.allclose(result.state[name], tensor, atol=1e-6), name
