"""Training and testing of a spread network with lost messages, in one process.

    channel = LossyRadio(spread, routes, place.delivery(3.9), seed=1)
    net = Perceptron((784, 64, 64, 64, 64, 10))
    history = train(net, data, channel, epochs=20)

For any step, a channel draws which messages arrive, and makes masks on the weights from that. Training and
testing draw from separate streams: the number of tests does not change the training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.batches import batch_indices
from weft.data.dataset import Dataset
from weft.draws import NOBODY, TESTING, TRAINING, Draws, Drills, uniforms
from weft.errors import InputError
from weft.fleet.radio import Matrix
from weft.graph.split.lost_values import LostValues
from weft.graph.split.masked import Masks
from weft.plans.delivery import Routes
from weft.strategies.stitchnet.budget import worth
from weft.strategies.stitchnet.mapping import Spread
from weft.strategies.stitchnet.paths import arrived, slots, wanted

CHUNK = 100  # steps whose losses are drawn at once
BATCH = 100


@dataclass(frozen=True)
class LossyRadio:
    """Which messages arrive. `delivery` holds the true probabilities.

    With `expected` a receiver multiplies what arrived by (weight expected) / (weight arrived), so that its
    sum keeps its size whatever is lost. `expected` holds the assumed chance of each message (slots x n x n).
    """

    spread: Spread
    routes: Routes
    delivery: Matrix
    seed: int = 0
    update: LostValues = "zero"
    expected: Matrix | None = None  # slots x n x n; None: what arrived is not multiplied
    drill: float = 0.0  # percent of the training minibatches in which one worker is left out
    dtype: torch.dtype = torch.float32

    def draws(self, stream: int) -> Draws:
        """The random numbers of a stream: training or testing."""
        n = self.spread.devices
        return Draws(self.seed, stream, slots(self.spread), n, self.routes.attempts)

    def heard(self, stream: int, first: int, steps: int) -> NDArray[np.bool_]:
        """Which messages arrive: steps x slots x n x n; the row is the sender."""
        crossed = uniforms(self.draws(stream), first, steps) < self.delivery
        if stream == TRAINING and self.drill:
            workers = tuple(d for d in self.spread.workers if d != self.spread.coordinator)
            absent = Drills(self.seed, self.drill, workers).absent(first, steps)
            for step in np.flatnonzero(absent != NOBODY):
                crossed[step, ..., absent[step], :] = crossed[step, ..., absent[step]] = False
        return arrived(self.routes, crossed)

    def masks(self, stream: int, first: int, steps: int) -> Masks:
        """The masks of `steps` steps from `first` on."""
        return self.as_masks(self.heard(stream, first, steps))

    def as_masks(self, heard: NDArray[np.bool_]) -> Masks:
        """The masks on the weights for messages that arrived."""
        asked = self._wanted
        whole = torch.from_numpy((heard | ~asked).all(axis=(1, 2, 3)))
        values = heard if self.expected is None else heard * self._levels(heard)
        # steps x slots x receiver x sender, like a weight matrix
        d = torch.from_numpy(values).to(self.dtype).transpose(2, 3)
        one_hot, depth, c = self._one_hot, len(self.spread.owners), self.spread.coordinator

        def spread_out(slot: int, into: Tensor, out: Tensor) -> Tensor:
            return torch.matmul(out.t(), torch.matmul(d[:, slot], into))

        back = d.transpose(2, 3)  # the sender of a gradient is the row of the weight matrix
        return Masks(
            d[:, 0, :, c] @ one_hot[0],
            tuple(spread_out(b, one_hot[b - 1], one_hot[b]) for b in range(1, depth)),
            d[:, depth, c, :] @ one_hot[-1],
            back[:, 2 * depth, c, :] @ one_hot[-1],
            tuple(
                torch.matmul(one_hot[b].t(), torch.matmul(back[:, depth + b], one_hot[b - 1]))
                for b in range(1, depth)
            ),
            whole,
            *(self._stand_ins if self.update == "own" else ()),
        )

    def _levels(self, heard: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Expected weight divided by arrived weight of each receiver; 1 for gradients."""
        assert self.expected is not None
        carried = worth(self.spread)
        arrived_weight = (carried * heard).sum(axis=2, keepdims=True)
        expected = (carried * self.expected).sum(axis=1, keepdims=True)
        levels: NDArray[np.float64] = np.divide(
            expected, arrived_weight, out=np.ones_like(arrived_weight), where=arrived_weight > 0
        )
        levels[:, len(self.spread.owners) + 1 :] = 1.0
        return levels

    @cached_property
    def _wanted(self) -> NDArray[np.bool_]:
        return wanted(self.spread)

    @cached_property
    def _one_hot(self) -> list[Tensor]:
        """By hidden layer, devices x neurons: 1 for the owner; a lost neuron has no owner."""
        devices = np.arange(self.spread.devices)[:, None]
        return [torch.from_numpy(o[None] == devices).to(self.dtype) for o in self.spread.owners]

    @cached_property
    def _stand_ins(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The receiver's own neurons of the layer before, cyclically, in place of a lost message."""
        indices, has = [], []
        for into, out in zip(self.spread.owners, self.spread.owners[1:], strict=False):
            place = np.array([np.sum(into[:j] == into[j]) for j in range(len(into))])
            index = np.zeros((len(out), len(into)), dtype=np.int64)
            exists = np.zeros((len(out), len(into)))
            for i, receiver in enumerate(out):
                own = np.flatnonzero(into == receiver)
                if len(own):
                    index[i] = own[place % len(own)]
                    exists[i] = into >= 0
            indices.append(torch.from_numpy(index))
            has.append(torch.from_numpy(exists).to(self.dtype))
        return tuple(indices), tuple(has)


class Learner(Protocol):
    """A network that learns with masks: `graph.masked.Perceptron`, `graph.masked_conv.ConvNet`."""

    def prepared(self, x: Tensor) -> Tensor: ...

    def step(self, x: Tensor, y: Tensor, masks: Masks) -> Tensor | None: ...

    def accuracy(self, x: Tensor, y: Tensor, masks: Masks) -> float: ...


@dataclass
class History:
    """For each test: the step, the mean training loss since the last test, the test accuracy."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


Changed = Callable[[int, float], LossyRadio | None]  # (step, accuracy): another channel from now on


def train(
    net: Learner,
    data: Dataset,
    channel: LossyRadio,
    *,
    epochs: float = 20,
    every: int | None = None,
    seed: int = 0,
    batch: int = BATCH,
    testing: LossyRadio | None = None,
    changed: Changed | None = None,
) -> History:
    """Train with lost messages, and test with lost messages once per epoch (or every `every` steps).

    `testing` is the channel for tests, if it is not the one for training. After each test `changed` may
    return another channel: the radio became worse, or a device is gone. InputError if the data set is
    smaller than a batch.
    """
    x, y = net.prepared(data.train_x), data.train_y
    if len(x) < batch:
        raise InputError(
            f"data set {data.name}: {len(x)} samples are fewer than a batch of {batch}"
        )
    per_epoch = len(x) // batch
    every = per_epoch if every is None else every
    history = History()
    total = torch.zeros(())
    counted, masks = 0, channel.masks(TRAINING, 0, 0)
    begin = 0
    for step in range(round(epochs * per_epoch)):
        if step - begin >= len(masks):
            masks, begin = channel.masks(TRAINING, step, CHUNK), step
        rows = batch_indices(len(x), batch, step, seed)
        loss = net.step(x[rows], y[rows], masks.at(step - begin))
        if loss is not None:
            total += loss
            counted += 1
        if (step + 1) % every == 0:
            accuracy = evaluate(net, data, testing or channel, (step + 1) // every, batch)
            history.steps.append(step + 1)
            history.losses.append(float(total) / counted if counted else float("nan"))
            history.accuracies.append(accuracy)
            total, counted = torch.zeros(()), 0
            other = changed(step + 1, accuracy) if changed else None
            if other is not None:
                channel, begin, masks = other, step + 1, other.masks(TRAINING, step + 1, 0)
    return history


def evaluate(
    net: Learner, data: Dataset, channel: LossyRadio, test: int = 0, batch: int = BATCH
) -> float:
    """Accuracy with lost messages. Each batch of the test set, in each test, has its own losses."""
    batches = max(len(data.test_x) // batch, 1)
    count = batches * min(batch, len(data.test_x))
    masks = channel.masks(TESTING, test * batches, batches)
    return net.accuracy(net.prepared(data.test_x[:count]), data.test_y[:count], masks)
