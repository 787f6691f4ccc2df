"""Optimizers by name. They run on the device with the shard, so only their name and numbers are sent.

    rule = Optimizer("rmsprop", 0.01, arguments={"alpha": 0.9})
    rule.build(weights, names)       # PyTorch's optimizer for these weights

A node builds only classes of the table below: nothing that comes from the network is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from msgspec import Struct
from torch import Tensor

from weft.errors import InputError
from weft.graph.optimizers.words import CLIP
from weft.graph.optimizers.words import SLOTS as SLOTS

NAMES: tuple[str, ...] = tuple(SLOTS)
# The name that a class of torch.optim has here; `momentum` is SGD with momentum.
CLASSES: dict[str, str] = {
    "sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad",
    "adadelta": "Adadelta", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam",
    "rmsprop": "RMSprop", "rprop": "Rprop", "asgd": "ASGD", "adafactor": "Adafactor", "muon": "Muon",
}  # fmt: skip
# Why the other classes are refused.
REFUSED: dict[str, str] = {
    "lbfgs": "it computes the loss several times for one step (a closure), which no pipeline can do",
    "sparseadam": "it needs sparse gradients, and devices exchange dense ones",
}
WITH_DECAY = ("sgd", "momentum", "adam", "adamw")  # `weight_decay` of the record always counts
AVERAGE = "ema"  # under this name a weight's running mean is kept with the optimizer's memory
NOT_ARGUMENTS = ("params", "capturable", "differentiable")

Value = bool | int | float | str | tuple[float | None, ...] | None


class Group(Struct, frozen=True):
    """Weights with settings of their own, such as no decay."""

    names: tuple[str, ...]
    arguments: dict[str, Value]


class Optimizer(Struct, frozen=True, omit_defaults=True):
    """Which rule updates the weights. `momentum` is for the rule of that name."""

    name: str = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    rounds: int = 0  # the rate falls linearly to a tenth over so many rounds; 0: it is constant
    round_steps: int = 1  # minibatches in a round
    arguments: dict[str, Value] = {}  # of the class of torch.optim
    groups: tuple[Group, ...] = ()  # a weight in no group has the settings above
    untouched: tuple[str, ...] = ()  # weights that are not updated
    clip_value: float = 0.0  # no number of a gradient is larger than this; 0: no limit
    clip_norm: float = 0.0  # the norm of all gradients together is at most this; 0: no limit
    ema: float = 0.0  # how much of the running mean of weights an update keeps; 0: there is none

    def rate(self, step: int) -> float:
        """The learning rate of a minibatch."""
        if self.rounds < 2:
            return self.lr
        return self.lr * (1 - 0.9 * min(step // self.round_steps / (self.rounds - 1), 1.0))

    @property
    def words(self) -> str:
        """What is kept for each weight, as a plan says it: "adam amsgrad"."""
        words = [self.name]
        every = [self.settings, *(group.arguments for group in self.groups)]
        for word in ("amsgrad", "centered"):
            if any(settings.get(word) for settings in every):
                words.append(word)
        if self.name in ("sgd", "rmsprop") and any(settings.get("momentum") for settings in every):
            words.append("momentum")
        if self.ema:
            words.append(AVERAGE)
        if self.clip_norm:
            words.append(CLIP)
        return " ".join(words)

    @property
    def settings(self) -> dict[str, Value]:
        """The arguments of the class for weights in no group."""
        settings: dict[str, Value] = {"lr": self.lr}
        if self.name == "momentum":
            settings["momentum"] = self.momentum
        if self.weight_decay or self.name in WITH_DECAY:
            settings["weight_decay"] = self.weight_decay
        return {**settings, **self.arguments}

    def build(
        self, parameters: Sequence[Tensor], names: Sequence[str] = ()
    ) -> torch.optim.Optimizer:
        """PyTorch's optimizer for these weights; InputError for an unknown name or a wrong argument.

        Group 0 has the weights in no group. The others have the numbers of `groups`, counted from 1; a group
        may be empty.
        """
        make = optimizer_class(self.name)
        settings = self.settings
        for each in (settings, *(group.arguments for group in self.groups)):
            check_arguments(self.name, each)
        group_of = {name: n for n, group in enumerate(self.groups, 1) for name in group.names}
        members: list[list[Tensor]] = [[] for _ in range(len(self.groups) + 1)]
        for name, parameter in zip(names or [""] * len(parameters), parameters, strict=True):
            if name not in self.untouched:
                members[group_of.get(name, 0)].append(parameter)
        rows: list[dict[str, Any]] = [{"params": members[0]}]
        rows += [
            {"params": those, **group.arguments}
            for those, group in zip(members[1:], self.groups, strict=True)
        ]
        try:
            return make(rows, **cast(dict[str, Any], settings))
        except (TypeError, ValueError) as error:
            raise InputError(f"optimizer {self.name}: {error}") from None


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The class of torch.optim behind a name; InputError where there is none."""
    if name in REFUSED:
        raise InputError(f"optimizer {name!r} is refused: {REFUSED[name]}")
    if name not in CLASSES:
        raise InputError(f"optimizer {name!r} is not one of {', '.join(NAMES)}")
    make: type[torch.optim.Optimizer] | None = getattr(torch.optim, CLASSES[name], None)
    if make is None:
        raise InputError(
            f"optimizer {name!r} is not in torch {torch.__version__}; install a newer one"
        )
    return make


def arguments_of(name: str) -> tuple[str, ...]:
    """The arguments that an optimizer takes."""
    keys = inspect.signature(optimizer_class(name)).parameters
    return tuple(key for key in keys if key not in NOT_ARGUMENTS)


def check_arguments(name: str, arguments: Mapping[str, Value]) -> None:
    """Raises InputError where the optimizer takes no such argument."""
    allowed = arguments_of(name)
    for key, value in arguments.items():
        if key not in allowed:
            raise InputError(
                f"optimizer {name}: {key} = {value!r} is not allowed; allowed are {', '.join(allowed)}"
            )


def state_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The optimizer's memory as named tensors: "fc.weight/exp_avg"."""
    tensors = {}
    for name, parameter in names.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{name}/{key}"] = torch.as_tensor(value).detach()
    return tensors


def load_state_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor], saved: Mapping[str, Tensor]
) -> None:
    """Restores the memory that `state_tensors` returned, for the parameters of this optimizer."""
    for full, value in saved.items():
        name, _, key = full.rpartition("/")
        if name in names:
            optimizer.state[names[name]][key] = value.clone()


def split_memory(memory: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The running means by the names of their weights, and the rest of an optimizer's memory."""
    end = f"/{AVERAGE}"
    means = {full.removesuffix(end): t for full, t in memory.items() if full.endswith(end)}
    return means, {full: t for full, t in memory.items() if not full.endswith(end)}
