"""A peer's own samples: those of its classes, in an order that depends only on its seed."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.data import load
from weft.data.classes import class_rows
from weft.errors import InputError
from weft.runtime.wire.messages import Job

Minibatch = tuple[dict[str, Tensor], Tensor | dict[str, Tensor] | None]


class Epochs:
    """Minibatches out of n samples. Each epoch has a new order. The rest of an epoch that fills no minibatch
    is not used.

    The order is that of `weft.reference.peers.Trainer`, so a run and its simulation see the same samples.
    """

    def __init__(self, n: int, batch: int, seed: int) -> None:
        if n < batch:
            raise InputError(f"a peer has {n} samples of its classes; a minibatch needs {batch}")
        self._n, self._batch, self._seed = n, batch, seed
        self._begin()

    def _begin(self) -> None:
        self._generator = torch.Generator().manual_seed(self._seed)
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.long)

    def rows(self, step: int) -> Tensor:
        """Rows of minibatch `step`. Minibatches may be asked for in any order."""
        epoch, place = divmod(step, self._n // self._batch)
        if epoch < self._epoch:
            self._begin()
        while self._epoch < epoch:
            self._order = torch.randperm(self._n, generator=self._generator)
            self._epoch += 1
        return self._order[place * self._batch : (place + 1) * self._batch]


class ClassSamples:
    """A data set on this machine. A peer uses its share of the samples of its classes."""

    def __init__(self, job: Job) -> None:
        data = job.data
        assert data.name is not None
        assert data.classes is not None
        found = load(data.name)
        x, y = found.train_x[: data.rows], found.train_y[: data.rows]
        rows = class_rows(
            y, data.classes.sets, data.classes.deal, seed=data.classes.seed,
            shares=data.classes.shares or None,
        )[data.classes.peer]  # fmt: skip
        if len(job.inputs) != 1:
            raise InputError(f"{data.name} feeds one input; the network has {len(job.inputs)}")
        self._x, self._y = x[rows], y[rows]
        if data.classes.own_columns:
            self._y = columns(self._y, data.classes.sets[data.classes.peer])
        self._input = job.inputs[0]
        self._epochs = Epochs(len(rows), job.batch, data.seed)
        self._last: tuple[int, Minibatch] | None = None

    def minibatch(self, step: int) -> Minibatch:
        if self._last is None or self._last[0] != step:
            rows = self._epochs.rows(step)
            self._last = (step, ({self._input: self._x[rows]}, self._y[rows]))
        return self._last[1]


def columns(labels: Tensor, classes: tuple[int, ...]) -> Tensor:
    """Columns of a peer's output for the labels of its classes.

    >>> columns(torch.tensor([7, 2, 7]), (2, 7)).tolist()
    [1, 0, 1]
    """
    table = torch.zeros(max(classes) + 1, dtype=torch.long)
    table[list(classes)] = torch.arange(len(classes))
    return table[labels]
