"""The user's data, in whatever form: a set's name, a Dataset, two tensors, or a function of the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.data import Dataset, batch_indices, load
from weft.data.user_data import Data, Pair
from weft.errors import InputError
from weft.runtime.run.feeder import Feed, Minibatch


@dataclass(frozen=True)
class Source:
    """Training data: `name` where the device that loads can open the set itself, else a feed."""

    example: Tensor  # two samples
    target: Tensor  # all targets, or those of the first minibatch
    pairs: Callable[[int], Pair]  # of minibatch n
    name: str | None = None
    test: tuple[Tensor, Tensor] | None = None
    classes: int | None = None

    def feed(self, input_name: str) -> Feed:
        """The minibatches under the name that the network gives its input."""

        def named(step: int) -> Minibatch:
            x, y = self.pairs(step)
            return {input_name: x}, y

        return named


def source_of(data: Data, batch: int, seed: int) -> Source:
    """What a run reads. Minibatch n is the same wherever and whenever it is asked for."""
    if isinstance(data, str):
        return _of_set(load(data), batch, seed, name=data)
    if isinstance(data, Dataset):
        return _of_set(data, batch, seed)
    if isinstance(data, tuple):
        x, y = data
        _check_pair(x, y)
        return Source(x[:2], y, _shuffled(x, y, batch, seed))
    if callable(data):
        given = data

        def pairs(step: int) -> Pair:
            x, y = given(step)
            _check_pair(x, y)
            if len(x) != batch:
                raise InputError(f"minibatch {step} has {len(x)} samples; the plan is for {batch}")
            return x, y

        x, y = given(0)
        _check_pair(x, y)
        return Source(x[:2], y, pairs)
    raise InputError(
        f"data is a {type(data).__name__}; give a set's name, a Dataset, a pair of tensors, "
        "or a function that returns the pair of minibatch n"
    )


def _of_set(found: Dataset, batch: int, seed: int, name: str | None = None) -> Source:
    return Source(
        found.train_x[:2],
        found.train_y,
        _shuffled(found.train_x, found.train_y, batch, seed),
        name,
        (found.test_x, found.test_y),
        found.classes,
    )


def _shuffled(x: Tensor, y: Tensor, batch: int, seed: int) -> Callable[[int], Pair]:
    def pairs(step: int) -> Pair:
        index = batch_indices(len(x), batch, step, seed)
        return x[index], y[index]

    return pairs


def _check_pair(x: Any, y: Any) -> None:
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise InputError("data must be two tensors: samples and targets")
    if len(x) != len(y) or len(x) < 1:
        raise InputError(f"data has {len(x)} samples but {len(y)} targets")


@torch.no_grad()
def accuracy(model: torch.nn.Module, test: tuple[Tensor, Tensor]) -> float:
    """The share of test samples whose largest output is their class."""
    was = model.training
    model.eval()
    try:
        right = 0
        for x, y in zip(torch.split(test[0], 250), torch.split(test[1], 250), strict=True):
            right += int((model(x).argmax(1) == y).sum())
        return right / len(test[1])
    finally:
        model.train(was)
