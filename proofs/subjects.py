"""What the runs of the matrix train: small networks on small fleets, one subject for each kind of strategy.

Devices are slow on purpose (a step takes about 20 ms): a fault then finds the run on its way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weft import zoo
from weft.chaos.fleets import HOME, ROAMING, SWARM, TIERS
from weft.data import batch_indices
from weft.fleet.fleet import Device, Fleet, Medium
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans import registry
from weft.plans.protocols import CLONE, PEERS
from weft.plans.strategy import Strategy

BATCH, SEED, CLASSES = 8, 3, 4
# With a rate of 0.02 rounding decides: one process that adds the gradients of 5 and of 3 samples ends, after
# 340 minibatches, 0.5 away from one that takes all 8 at once. With 0.01 every such split ends within 5e-7.
RULE = Optimizer("momentum", 0.01)
# Where a strategy has these options, its run computes what one process computes.
EXACT = {
    "codecs": "none",
    "codec": "none",
    "input_codec": "none",
    "in_flight": "1",
    "drill": "none",
}
_RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(96, 1, 8, 8, generator=_RANDOM)
Y = torch.arange(96) % CLASSES

Loss = Callable[[Tensor, Tensor], Tensor]


def squares(output: Tensor, target: Tensor) -> Tensor:
    """A loss of one's own: a mean over samples that is no cross-entropy."""
    return ((output - nn.functional.one_hot(target, output.shape[1])) ** 2).sum(1).mean()


def pairs(step: int) -> tuple[Tensor, Tensor]:
    rows = batch_indices(len(X), BATCH, step, SEED)
    return X[rows], Y[rows]


CELL = Fleet(
    (Device("gw", "edge", gflops=0.1, data=True), *(Device(f"r{k}", gflops=0.1) for k in range(3))),
    medium=(Medium("wifi", "gw", ("r0", "r1", "r2"), 100.0),),
)


def small() -> nn.Module:
    torch.manual_seed(1)
    return drawn()


def drawn() -> nn.Module:
    """The same network with the weights that torch's seed gives: runs with several seeds must differ."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def digits_net() -> nn.Module:
    torch.manual_seed(1)
    return zoo.build("cnn5", (1, 8, 8), 10)


@dataclass(frozen=True)
class Subject:
    fleet: Fleet
    model: Callable[[], nn.Module] = small
    data: Any = pairs  # or the name of a set
    options: Mapping[str, str] = field(default_factory=dict)
    steps: int = 40


_ROUNDS = {"steps": "10", "last": "2", "filters": "20", "pretrain": "10", "public": "100"}


def subject_of(strategy: Strategy) -> Subject:
    """By what the strategy's record says, never by its name."""
    exact = {key: value for key, value in EXACT.items() if key in strategy.options}
    if strategy.workload == PEERS:
        return Subject(HOME, digits_net, "digits", _ROUNDS)
    if strategy.recovery == CLONE:
        return Subject(SWARM, options={**exact, "every": "4"})
    if "train" not in strategy.modes:
        return Subject(CELL)
    if strategy.options.get("codec", "").endswith("always"):
        del exact["codec"]
    if "devices" in strategy.options:  # else the whole network may well go to one server
        exact["devices"] = "pi,nuc,cloud"
    return Subject(ROAMING if strategy.online is not None else TIERS, options=exact)


def subject(name: str) -> Subject:
    return subject_of(registry.get(name))


def alone(steps: int, loss: Loss = nn.functional.cross_entropy) -> dict[str, Tensor]:
    """The same training in one process."""
    module = copy.deepcopy(small()).train()
    optimizer = RULE.build(list(module.parameters()))
    for step in range(steps):
        x, y = pairs(step)
        optimizer.zero_grad()
        loss(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


def furthest(model: nn.Module, expected: Mapping[str, Tensor]) -> float:
    """The largest difference of any weight."""
    found = model.state_dict()
    return max(float((found[n].double() - t.double()).abs().max()) for n, t in expected.items())
