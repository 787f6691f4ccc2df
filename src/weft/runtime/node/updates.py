"""A device's optimizers: one for each range of layers that it trains.

updates = Updates(job.optimizer, trained)
updates.step((0, 3), step=7)         # the optimizer's step of these layers, and what belongs to it
updates.memory()                     # {"fc.weight/exp_avg": ...}: for copies, saves and moves
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from weft.graph.execute import Runner
from weft.graph.optimizers.optimizer import (
    AVERAGE,
    Optimizer,
    load_state_tensors,
    split_memory,
    state_tensors,
)
from weft.graph.optimizers.schedule import Rates

Layers = tuple[int, int]


class Updates:
    """The optimizers of one device. They change the runners' weights in place."""

    def __init__(self, rule: Optimizer, trained: Mapping[Layers, Runner]) -> None:
        self.rule = rule
        self.rates = Rates()  # settings that change from minibatch to minibatch
        self._averages: dict[str, Tensor] = {}  # running means of weights, from the first update on
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
        self.rates.apply(optimizer, step)
        if self.rule.clip_value:
            torch.nn.utils.clip_grad_value_(self._weights[layers].values(), self.rule.clip_value)
        optimizer.step()
        if self.rule.ema:
            self._average(layers)

    @torch.no_grad()
    def squares(self, segments: Iterable[Layers]) -> Tensor:
        """The sum of the squares of all gradients of some segments."""
        gradients = self._gradients(segments)
        if not gradients:
            return torch.zeros(())
        return torch.stack([gradient.float().square().sum() for gradient in gradients]).sum()

    @torch.no_grad()
    def clip(self, segments: Iterable[Layers], squares: Tensor) -> None:
        """Limits gradients as torch.nn.utils.clip_grad_norm_ does, by the norm of all devices' gradients."""
        factor = (self.rule.clip_norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient in self._gradients(segments):
            gradient.mul_(factor)

    def _gradients(self, segments: Iterable[Layers]) -> list[Tensor]:
        weights = [w for layers in segments for w in self._weights[layers].values()]
        return [weight.grad for weight in weights if weight.grad is not None]

    @torch.no_grad()
    def _average(self, layers: Layers) -> None:
        """The running means after an update. The first update begins them, as in torch.optim.swa_utils."""
        for name, weight in self._weights[layers].items():
            mean = self._averages.get(name)
            if mean is None:
                self._averages[name] = weight.detach().clone()
            else:
                mean.lerp_(weight, 1 - self.rule.ema)

    def forget_gradients(self, layers: Layers | None = None) -> None:
        """Drops the gradients of these layers, or of all."""
        for at in self._optimizers if layers is None else [layers]:
            for weight in self._weights[at].values():
                weight.grad = None

    def memory(self, layers: Layers | None = None) -> dict[str, Tensor]:
        """All that the optimizer of these layers keeps, or of all layers, by the names of weights."""
        if layers is None:
            parts = [self.memory(at) for at in self._optimizers]
            return {n: t for part in parts for n, t in part.items()}
        if layers not in self._optimizers:
            return {}
        own = self._weights[layers]
        means = {f"{n}/{AVERAGE}": mean for n, mean in self._averages.items() if n in own}
        return {**state_tensors(self._optimizers[layers], own), **means}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Takes up what `memory` returned."""
        means, rest = split_memory(saved)
        for layers, optimizer in self._optimizers.items():
            load_state_tensors(optimizer, self._weights[layers], rest)
            if self.rule.ema:
                own = self._weights[layers]
                self._averages |= {n: mean.clone() for n, mean in means.items() if n in own}

    def forget(self) -> None:
        """As before the first update."""
        self._averages = {}
        for optimizer in self._optimizers.values():
            optimizer.state.clear()


def _weights(runner: Runner) -> dict[str, Tensor]:
    return {name: runner.state[name] for name in runner.trained_names}
