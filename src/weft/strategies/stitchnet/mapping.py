"""Which device owns which neuron: StitchNet's Mix-Mapped and its baselines.

    spread = mix_mapped(prr, (64, 64, 64, 64))
    spread.owners[0]         # the device of each of the 64 neurons of the first hidden layer

           layer 1  2  3  4                    layer 1  2  3  4
    w1           8  8  8  8   horizontal       w5   32  .  .  .   vertical
    ...                                        ...
    w4           8  8  8  8                    w8    .  .  . 32

Devices are numbers 0 .. n-1. `prr` is the matrix of measured packet reception ratios; the row is the
sender. The coordinator owns the input and the output layer and no hidden neuron.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weft.fleet.radio import Matrix

Owners = tuple[NDArray[np.int64], ...]
Order = Literal["quality", "random", "reverse"]

NOBODY = -1  # the owner of a neuron that was lost with its device
# For at most so many vertical devices all orders are tried; for more, the nearest goes next.
FEW = 7


@dataclass(frozen=True)
class Spread:
    """Which device owns each hidden neuron of a network."""

    devices: int
    coordinator: int
    owners: Owners  # by hidden layer: the device of each neuron
    horizontal: tuple[int, ...] = ()  # devices with a share of every layer
    vertical: tuple[int, ...] = ()  # devices with one layer each, in the order of the layers

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of neurons of each hidden layer."""
        return tuple(len(owners) for owners in self.owners)

    @property
    def workers(self) -> tuple[int, ...]:
        """All devices that own a hidden neuron."""
        owning = {int(d) for owners in self.owners for d in owners}
        return tuple(sorted(owning - {NOBODY}))

    def holders(self) -> list[tuple[int, ...]]:
        """The devices that hold a part of the input, of each hidden layer, and of the output."""
        hidden = [tuple(sorted({int(d) for d in o} - {NOBODY})) for o in self.owners]
        return [(self.coordinator,), *hidden, (self.coordinator,)]

    def units(self, device: int, layer: int) -> NDArray[np.int64]:
        """The device's neurons of a hidden layer, counted from 0."""
        return np.flatnonzero(self.owners[layer] == device)

    def counts(self) -> NDArray[np.int64]:
        """How many neurons each device (row) owns of each hidden layer (column)."""
        columns = [np.bincount(o[o >= 0], minlength=self.devices) for o in self.owners]
        return np.stack(columns, axis=1)


def scores(prr: Matrix) -> Matrix:
    """The connectivity of each device: the mean over the others of PRR there times PRR back."""
    n = len(prr)
    both: Matrix = prr * prr.T
    means: Matrix = (both.sum(axis=1) - np.diag(both)) / (n - 1)
    return means


def elect(prr: Matrix, among: Sequence[int] | None = None) -> int:
    """The coordinator: the device of `among` that has the best score by its links with the others."""
    candidates = list(range(len(prr))) if among is None else sorted(among)
    return candidates[int(scores(prr[np.ix_(candidates, candidates)]).argmax())]


def ranked(prr: Matrix, coordinator: int) -> list[int]:
    """The workers; the best connected comes first."""
    score = scores(prr)
    return sorted((d for d in range(len(prr)) if d != coordinator), key=lambda d: (-score[d], d))


def mix_mapped(
    prr: Matrix,
    widths: Sequence[int],
    *,
    order: Order = "quality",
    coordinator: int | None = None,
    seed: int = 0,
) -> Spread:
    """The better half of the workers is horizontal, the other half vertical.

    `order` says who is better: `quality` by score, `reverse` the worse ones, `random` by chance.
    """
    c = elect(prr) if coordinator is None else coordinator
    workers = ranked(prr, c)
    if order == "reverse":
        workers.reverse()
    elif order == "random":
        workers = [workers[i] for i in _random(seed).permutation(len(workers))]
    better = ceil(len(workers) / 2)
    horizontal = tuple(sorted(workers[:better]))
    vertical = near_each_other(prr, c, workers[better:])
    counts = np.zeros((len(prr), len(widths)), dtype=np.int64)
    share = sum(widths) // len(workers)
    layers = [index % len(widths) for index in range(len(vertical))]
    for device, layer in zip(vertical, layers, strict=True):
        # A layer's vertical devices have at most half of it; the horizontal devices have the rest.
        counts[device, layer] = min(share, widths[layer] // 2 // layers.count(layer))
    left = np.array(widths) - counts.sum(axis=0)
    counts[list(horizontal)] = even_counts(left.tolist(), len(horizontal))
    return Spread(len(prr), c, deal(counts), horizontal, vertical)


def near_each_other(prr: Matrix, coordinator: int, devices: Sequence[int]) -> tuple[int, ...]:
    """Vertical devices in the order of layers in which neighbours hear each other best.

    Neighbours hear each other directly or through the coordinator; both directions count.
    """
    heard = np.maximum(prr, np.outer(prr[:, coordinator], prr[coordinator]))
    both = np.log(np.maximum(heard * heard.T, 1e-6))

    def quality(order: Iterable[int]) -> float:
        way = [coordinator, *order, coordinator]
        return float(sum(both[a, b] for a, b in pairwise(way)))

    if len(devices) <= FEW:
        return tuple(max(permutations(sorted(devices)), key=quality))
    chain, rest = [coordinator], sorted(devices)
    while rest:
        chain.append(max(rest, key=lambda d: both[chain[-1], d]))
        rest.remove(chain[-1])
    return tuple(chain[1:])


def horizontal(prr: Matrix, widths: Sequence[int], coordinator: int | None = None) -> Spread:
    """Every worker has an equal share of every layer."""
    c = elect(prr) if coordinator is None else coordinator
    workers = [d for d in range(len(prr)) if d != c]
    counts = np.zeros((len(prr), len(widths)), dtype=np.int64)
    counts[workers] = even_counts(widths, len(workers))
    return Spread(len(prr), c, deal(counts), tuple(workers))


def vertical(
    prr: Matrix, widths: Sequence[int], coordinator: int | None = None, seed: int = 0
) -> Spread:
    """Neurons are dealt layer by layer to the workers in random order; few workers share a layer."""
    c = elect(prr) if coordinator is None else coordinator
    workers = [d for d in range(len(prr)) if d != c]
    workers = [workers[i] for i in _random(seed).permutation(len(workers))]
    owner = np.array(workers)[np.arange(sum(widths)) * len(workers) // sum(widths)]
    return Spread(len(prr), c, _by_layer(owner, widths), (), tuple(workers))


def random_units(
    prr: Matrix, widths: Sequence[int], coordinator: int | None = None, seed: int = 0
) -> Spread:
    """Every worker gets the same number of neurons, drawn at random from all layers."""
    c = elect(prr) if coordinator is None else coordinator
    workers = [d for d in range(len(prr)) if d != c]
    order = _random(seed).permutation(sum(widths))
    owner = np.array(workers)[order * len(workers) // sum(widths)]
    return Spread(len(prr), c, _by_layer(owner, widths))


def average_layers(
    prr: Matrix, widths: Sequence[int], coordinator: int | None = None, seed: int = 0
) -> Spread:
    """The control for Mix-Mapped: half of the workers have two layers each, half have three.

    A worker's layers follow each other in a circle of layers, so that each layer has as many workers.
    """
    c = elect(prr) if coordinator is None else coordinator
    workers = [d for d in range(len(prr)) if d != c]
    workers = [workers[i] for i in _random(seed).permutation(len(workers))]
    layers = len(widths)
    counts = np.zeros((len(prr), layers), dtype=np.int64)
    for half, many in ((workers[0::2], 2), (workers[1::2], 3)):
        many = min(many, layers)
        places: list[list[int]] = [[] for _ in range(layers)]  # workers by layer
        for offset in range(many):
            for index, device in enumerate(half):
                places[(index + offset) % layers].append(device)
        for layer, devices in enumerate(places):
            share = widths[layer] * len(half) // len(workers)
            for device, number in zip(devices, parts(share, len(devices)), strict=True):
                counts[device, layer] = number
    for layer, width in enumerate(widths):  # neurons that rounding left over
        for _ in range(width - int(counts[:, layer].sum())):
            held = [d for d in workers if counts[d, layer]] or workers
            counts[min(held, key=lambda d: int(counts[d].sum())), layer] += 1
    return Spread(len(prr), c, deal(counts), (), ())


def parts(total: int, count: int) -> list[int]:
    """`total` as `count` nearly equal whole numbers; the larger ones come first.

    >>> parts(32, 3)
    [11, 11, 10]
    """
    return [total // count + (index < total % count) for index in range(count)]


def even_counts(widths: Sequence[int], devices: int) -> NDArray[np.int64]:
    """Each layer shared equally. Neurons that are left over go to one device after the other."""
    counts = np.zeros((devices, len(widths)), dtype=np.int64)
    next_one = 0
    for layer, width in enumerate(widths):
        counts[:, layer] = width // devices
        for _ in range(width % devices):
            counts[next_one % devices, layer] += 1
            next_one += 1
    return counts


def deal(counts: NDArray[np.int64]) -> Owners:
    """Owners from counts: the first device's neurons come first, then the second's."""
    devices = np.arange(len(counts))
    return tuple(np.repeat(devices, counts[:, layer]) for layer in range(counts.shape[1]))


def _by_layer(owner: NDArray[np.int64], widths: Sequence[int]) -> Owners:
    return tuple(np.split(owner, np.cumsum(widths)[:-1]))


def _random(seed: int) -> np.random.RandomState:
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, 2])))


Mapper = Callable[[Matrix, Sequence[int], int | None, int], Spread]

MAPPERS: dict[str, Mapper] = {
    "mix-mapped": lambda q, w, c, s: mix_mapped(q, w, coordinator=c, seed=s),
    "mix-mapped-random": lambda q, w, c, s: mix_mapped(q, w, order="random", coordinator=c, seed=s),
    "mix-mapped-reverse": lambda q, w, c, s: mix_mapped(
        q, w, order="reverse", coordinator=c, seed=s
    ),
    "vertical": vertical,
    "horizontal": lambda q, w, c, s: horizontal(q, w, c),
    "random-units": random_units,
    "average-layers": average_layers,
}
