"""The user's data, in whatever form (`weft.data.user_data`), as the minibatches of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.data import Dataset, batch_indices, load
from weft.data.batches import joint_indices
from weft.data.indexed import Indexed
from weft.data.streams import Pair, Stream
from weft.data.trees import Tree, count_of, joined, mapped, rows_of, tensors_of
from weft.data.user_data import Data, opened
from weft.errors import InputError
from weft.fleet.owners import Owner
from weft.graph.capture.signature import Signature
from weft.graph.execute import TargetTotals
from weft.graph.network import Graph, Value
from weft.runtime.node.samples import Minibatch
from weft.runtime.run.feeder import Feed


@dataclass(frozen=True)
class Source:
    """Training data: `name` where the device that loads can open the set itself, else a feed."""

    example: Tree  # two samples
    target: Tree  # all targets, or those of the first minibatch
    pairs: Callable[[int], Pair]  # of minibatch n
    name: str | None = None
    test: tuple[Tensor, Tensor] | None = None
    classes: int | None = None
    complete: bool = True  # whether `target` has all targets
    stream: Stream | None = None  # where the data is read one minibatch after the other

    def feed(self, graph: Graph, signature: Signature, state: Mapping[str, Tensor]) -> Feed:
        """The minibatches under the names that the network and its loss give their tensors, with the sums
        over all targets that the losses of pieces need."""
        loss = graph.loss
        labels = tuple(loss.targets) if loss else ("target",)
        totals = TargetTotals(loss, state) if loss and loss.cut else None

        def named(step: int) -> Minibatch:
            x, y = self.pairs(step)
            inputs = signature.named(x)
            targets = dict(zip(labels, tensors_of(y), strict=True))
            _check_shapes(step, inputs, {n: graph.values[n] for n in graph.inputs})
            _check_shapes(step, targets, loss.targets if loss else {})
            if totals is not None:
                targets |= totals(targets)
            return {name: inputs[name] for name in graph.inputs}, targets

        return named


def _check_shapes(step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Value]) -> None:
    """Raises InputError if the samples of a minibatch are not as large as those of the first one."""
    for name, value in values.items():
        shape = tuple(tensors[name].shape[1:])
        if value.batch_dim == 0 and shape != value.shape[1:]:
            raise InputError(
                f"minibatch {step}: {name} has samples of shape {shape}, not {value.shape[1:]} as in the "
                "first minibatch. Only the number of samples may change: pad all minibatches to one length"
            )


def source_of(data: Data, batch: int, seed: int, owners: Sequence[Owner] = ()) -> Source:
    """What a run reads. Minibatch n is the same wherever and whenever it is asked for.

    Where several devices have data, a set is divided among them in proportion to their shares. A function
    of the step, or a loader, gives the whole minibatch, of which each device has its share.
    """
    data = opened(data, seed)
    shares = [owner.samples for owner in owners]
    if isinstance(data, str):
        return _of_set(load(data), batch, seed, shares, name=data)
    if isinstance(data, Dataset):
        return _of_set(data, batch, seed, shares)
    if isinstance(data, Mapping):
        return _of_devices(data, seed, owners)
    if isinstance(data, tuple):
        x, y = data
        _check_pair(x, y)
        return Source(_example(x), y, _shuffled(x, y, batch, seed, shares))
    if isinstance(data, Indexed):
        return _of_indexed(data, batch, seed, shares)
    minibatch = data

    def pairs(step: int) -> Pair:
        x, y = minibatch(step)
        _check_pair(x, y)
        if count_of(x) != batch:
            raise InputError(f"minibatch {step} has {count_of(x)} samples; the plan is for {batch}")
        return x, y

    x, y = minibatch(0)
    _check_pair(x, y)
    stream = data if isinstance(data, Stream) else None
    return Source(_example(x), y, pairs, complete=False, stream=stream)


def _example(x: Tree) -> Any:
    """Two samples, copied: the memory of arrays may be read-only."""
    return mapped(torch.clone, rows_of(x, slice(2)))


def _of_indexed(data: Indexed, batch: int, seed: int, shares: Sequence[int]) -> Source:
    indices = _indices(data.count, batch, seed, shares)

    def pairs(step: int) -> Pair:
        return data.rows(indices(step).tolist())

    x, y = pairs(0)
    return Source(_example(x), y, pairs, complete=False)


def _of_devices(data: Mapping[str, Pair], seed: int, owners: Sequence[Owner]) -> Source:
    """Data by device: each minibatch has a share of each, in the order of the fleet file."""
    names = [owner.device for owner in owners]
    if sorted(names) != sorted(data):
        where = ", ".join(names) or "one device"
        raise InputError(
            f"data is given for {', '.join(data)}; the fleet file has data = true at {where}"
        )
    for x, y in data.values():
        _check_pair(x, y)

    def pairs(step: int) -> Pair:
        found = []
        for owner in owners:
            x, y = data[owner.device]
            index = batch_indices(count_of(x), owner.samples, step, seed)
            found.append((rows_of(x, index), rows_of(y, index)))
        return joined([x for x, _ in found]), joined([y for _, y in found])

    targets = joined([data[name][1] for name in names])
    return Source(_example(data[names[0]][0]), targets, pairs)


def _of_set(
    found: Dataset, batch: int, seed: int, shares: Sequence[int], name: str | None = None
) -> Source:
    return Source(
        found.train_x[:2],
        found.train_y,
        _shuffled(found.train_x, found.train_y, batch, seed, shares),
        name,
        (found.test_x, found.test_y),
        found.classes,
    )


def _shuffled(
    x: Tree, y: Tree, batch: int, seed: int, shares: Sequence[int]
) -> Callable[[int], Pair]:
    indices = _indices(count_of(x), batch, seed, shares)

    def pairs(step: int) -> Pair:
        index = indices(step)
        return rows_of(x, index), rows_of(y, index)

    return pairs


def _indices(count: int, batch: int, seed: int, shares: Sequence[int]) -> Callable[[int], Tensor]:
    """The numbers of a minibatch's samples."""
    if shares:
        return lambda step: joint_indices(count, shares, step, seed)
    return lambda step: batch_indices(count, batch, step, seed)


def _check_pair(x: Any, y: Any) -> None:
    try:
        samples, targets = count_of(x), count_of(y)
    except (TypeError, ValueError) as error:
        raise InputError(f"data must be samples and targets: {error}") from None
    if samples != targets or samples < 1:
        raise InputError(f"data has {samples} samples but {targets} targets")


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
