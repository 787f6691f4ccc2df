"""What instructions do with the tensors that a device holds, run without sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from weft.graph.capture.module import capture, capture_loss, state_of
from weft.graph.optimizers.optimizer import Optimizer
from weft.loom.woven import Wire, execute
from weft.program.lower.lower import lower
from weft.runtime.node.interpreter import Interpreter
from weft.runtime.run.jobs import Settings, job_of
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.ledger import SPANS

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


def test_a_long_run_keeps_its_newest_spans(small: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept the first ones: after 200,000 spans an adaptive run saw nothing new at its looks."""
    monkeypatch.setitem(SPANS, "train", 5)
    plan = small.plan(("pi", 0, 1), ("cloud", 2, small.last))
    job = job_of("run", lower(plan), small.graph, Settings(), "pi", ("pi", "cloud"))
    fabric = cast(Fabric, Wire("pi", {}))
    device = Interpreter(job, small.state(), fabric, None, lambda step, micro, values: None)
    for step in range(20):
        device.span("forward", 0.0, step, 0, "")
    assert [span.step for span in device.spans] == [15, 16, 17, 18, 19]
