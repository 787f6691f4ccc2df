"""Optimizers by name. They run on the device with the shard, so only their name and numbers are sent."""

from __future__ import annotations

from typing import Literal

import torch
from msgspec import Struct
from torch import Tensor

from weft.errors import InputError

OptimizerName = Literal["sgd", "momentum", "adam", "adamw"]
NAMES: tuple[OptimizerName, ...] = ("sgd", "momentum", "adam", "adamw")
# tensors of a parameter's size that the optimizer keeps for it
SLOTS: dict[str, int] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


class Optimizer(Struct, frozen=True, omit_defaults=True):
    """Which rule updates the weights. `momentum` is for the rule of that name."""

    name: OptimizerName = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    rounds: int = 0  # the rate falls linearly to a tenth over so many rounds; 0: it is constant
    round_steps: int = 1  # minibatches in a round

    def rate(self, step: int) -> float:
        """The learning rate of a minibatch."""
        if self.rounds < 2:
            return self.lr
        return self.lr * (1 - 0.9 * min(step // self.round_steps / (self.rounds - 1), 1.0))

    def build(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """PyTorch's optimizer for these weights; InputError for an unknown name."""
        if self.name not in NAMES:
            raise InputError(f"optimizer {self.name!r} is not one of {', '.join(NAMES)}")
        if self.name == "adam":
            return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
        if self.name == "adamw":
            return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
        momentum = self.momentum if self.name == "momentum" else 0.0
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=momentum, weight_decay=self.weight_decay
        )


def state_tensors(optimizer: torch.optim.Optimizer, names: dict[str, Tensor]) -> dict[str, Tensor]:
    """The optimizer's memory as named tensors: "fc.weight/exp_avg"."""
    tensors = {}
    for name, parameter in names.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{name}/{key}"] = torch.as_tensor(value).detach()
    return tensors


def load_state_tensors(
    optimizer: torch.optim.Optimizer, names: dict[str, Tensor], saved: dict[str, Tensor]
) -> None:
    """Restores the memory that `state_tensors` returned, for the parameters of this optimizer."""
    for full, value in saved.items():
        name, _, key = full.rpartition("/")
        if name in names:
            optimizer.state[names[name]][key] = value.clone()
