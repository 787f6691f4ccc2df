"""What instructions do with the tensors that a device holds, run without sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.graph.capture import capture, capture_loss, state_of
from weft.graph.optimizer import Optimizer
from weft.loom.woven import execute
from weft.program.lower.lower import lower

Subject = Any


@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_labels_that_are_numbers_are_not_coded_with_the_activations(
    codec: str, make_subject: Callable[..., Subject]
) -> None:
    """They ride with the activations: in 8 bits, 1.3 beside 1000.3 would arrive as 0."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    subject = make_subject(module, (4,), 6)
    graph = capture(module, torch.zeros(2, 4))
    graph = capture_loss(graph, nn.L1Loss(), torch.zeros(2, 2))

    def data(step: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        return x, torch.tensor([1.3] * 10 + [-0.01, 1000.3]).view(6, 2)

    plan = subject.plan(("pi", 0, 0), ("cloud", 1, 1), codec=codec)
    losses = execute(lower(plan), graph, state_of(module), data, 1, Optimizer()).losses
    x, y = data(0)
    assert losses[0] == pytest.approx(nn.functional.l1_loss(module(x), y).item(), rel=1e-4)
