"""A device's optimizers: one for each range of layers that it trains.

updates = Updates(job.optimizer, trained)
updates.step((0, 3), step=7)         # the optimizer's step of these layers, and what belongs to it
updates.memory()                     # {"fc.weight/exp_avg": ...}: for copies, saves and moves
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from weft.graph.execute import Runner
from weft.graph.optimizer import Optimizer, load_state_tensors, state_tensors

Layers = tuple[int, int]


class Updates:
    """The optimizers of one device. They change the runners' weights in place."""

    def __init__(self, rule: Optimizer, trained: Mapping[Layers, Runner]) -> None:
        self.rule = rule
        self._weights = {layers: _weights(runner) for layers, runner in trained.items()}
        self._optimizers: dict[Layers, torch.optim.Optimizer] = {
            layers: rule.build(list(weights.values()), list(weights))
            for layers, weights in self._weights.items()
            if weights
        }

    def __contains__(self, layers: Layers) -> bool:
        return layers in self._optimizers

    def step(self, layers: Layers, step: int) -> None:
        """The optimizer's step of a minibatch."""
        optimizer = self._optimizers[layers]
        if self.rule.rounds:
            for group in optimizer.param_groups:
                group["lr"] = self.rule.rate(step)
        optimizer.step()

    def forget_gradients(self, layers: Layers | None = None) -> None:
        """Drops the gradients of these layers, or of all."""
        for at in self._optimizers if layers is None else [layers]:
            for weight in self._weights[at].values():
                weight.grad = None

    def memory(self) -> dict[str, Tensor]:
        """All that the optimizers keep, by the names of weights."""
        tensors: dict[str, Tensor] = {}
        for layers, optimizer in self._optimizers.items():
            tensors |= state_tensors(optimizer, self._weights[layers])
        return tensors

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Takes up what `memory` returned."""
        for layers, optimizer in self._optimizers.items():
            load_state_tensors(optimizer, self._weights[layers], saved)

    def forget(self) -> None:
        """As before the first update."""
        for optimizer in self._optimizers.values():
            optimizer.state.clear()


def _weights(runner: Runner) -> dict[str, Tensor]:
    return {name: runner.state[name] for name in runner.trained_names}
