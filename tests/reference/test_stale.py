"""Several minibatches in flight in one process: old weights are met, new ones are updated."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from weft.graph.optimizers.optimizer import Optimizer
from weft.reference.stale import StaleTraining

STEPS = 6


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def minibatch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(4, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator)


def by_hand(lag: int) -> dict[str, Tensor]:
    """All versions are kept; the first layer meets the one of `lag` updates ago."""
    module = network()
    versions = [copy.deepcopy(module.state_dict())]
    for step in range(STEPS):
        met = copy.deepcopy(module)
        old = versions[max(0, step - lag)]
        met.load_state_dict({**module.state_dict(), **{n: old[n] for n in ("0.weight", "0.bias")}})
        x, y = minibatch(step)
        nn.functional.cross_entropy(met(x), y).backward()
        with torch.no_grad():
            for mine, theirs in zip(module.parameters(), met.parameters(), strict=True):
                mine -= 0.1 * theirs.grad
        versions.append(copy.deepcopy(module.state_dict()))
    return module.state_dict()


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_client_layer_is_as_old_as_the_pipeline_makes_it(lag: int) -> None:
    module = network()
    training = StaleTraining(module, {"0.weight": lag, "0.bias": lag}, Optimizer("sgd", 0.1))
    for step in range(STEPS):
        training.step(*minibatch(step))
    for name, tensor in by_hand(lag).items():
        assert torch.allclose(module.state_dict()[name], tensor, atol=1e-6), name


def test_an_unknown_parameter_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"no parameter '9\.weight'"):
        StaleTraining(network(), {"9.weight": 1}, Optimizer())
