"""Training with several minibatches in flight, in one process: what a pipeline with weight stashing computes.

    training = StaleTraining(module, {"0.weight": 1, "0.bias": 1}, Optimizer("sgd", 0.05))
    training.step(x, y)

A parameter with lag n is used as it was n updates ago, and its gradient is applied to its present value. A
client with k minibatches in flight has lag k - 1 in its layers; a worker has lag 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from weft.graph.optimizers.optimizer import Optimizer


class StaleTraining:
    """`lags` says by name how many updates old a parameter is; a parameter without a name there has lag 0."""

    def __init__(self, module: nn.Module, lags: Mapping[str, int], rule: Optimizer) -> None:
        self.module = module.train()
        self.lags = dict(lags)
        self._live = dict(module.named_parameters())
        unknown = sorted(set(lags) - set(self._live))
        if unknown:
            raise KeyError(f"the network has no parameter {unknown[0]!r}")
        self._optimizer = rule.build(list(self._live.values()))
        self._older = {
            name: deque([self._live[name].detach().clone()] * lag, maxlen=lag)
            for name, lag in self.lags.items()
            if lag
        }

    def step(self, x: Tensor, y: Tensor) -> float:
        """Train one minibatch with cross-entropy; returns its loss."""
        met = {name: tensor.detach().requires_grad_() for name, tensor in self._live.items()}
        for name, versions in self._older.items():
            met[name] = versions[0].clone().requires_grad_()
            versions.append(self._live[name].detach().clone())
        output = torch.func.functional_call(self.module, met, (x,))
        loss = nn.functional.cross_entropy(output, y)
        loss.backward()  # type: ignore[no-untyped-call]
        for name, tensor in self._live.items():
            tensor.grad = met[name].grad
        self._optimizer.step()
        return float(loss.detach())
