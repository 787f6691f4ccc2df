"""What shared layers and structures cost: work, weights and memory, as numbers for a planner.

    parts = parts_of(task, plus=False)
    parts.work(5)              # by layer: the share of the whole layer's work that five classes need

With the network's graph, the numbers are those of the networks that the peers will get, and a network
that cannot be decoupled is refused. A profile alone does not say what a layer is: then the numbers are
estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

from weft.errors import InputError
from weft.graph.network import Graph
from weft.graph.split.classes.reader import countable, read_classes
from weft.graph.split.classes.subnet import Bank, class_graph
from weft.plans.task import Task
from weft.strategies.decoupled.settings import filter_percents

NUMBER = 4  # bytes of a float32


@dataclass(frozen=True)
class Linear:
    """A number by layer that grows with the classes of a peer: `fixed`, plus `each` for every class."""

    fixed: tuple[float, ...]
    each: tuple[float, ...]

    def at(self, held: int) -> list[float]:
        """The numbers by layer for `held` classes."""
        return [f + held * e for f, e in zip(self.fixed, self.each, strict=True)]

    def total(self, held: int) -> int:
        """The sum over all layers for `held` classes."""
        return round(sum(self.at(held)))


@dataclass(frozen=True)
class Parts:
    """What a peer's network costs, as a function of the number of its classes."""

    percents: tuple[int, ...]  # of the channels that a class keeps, by decoupled layer
    shares: Linear  # of each whole layer's work
    weights: Linear  # bytes
    saved: Linear  # bytes of activations per sample
    shared_numbers: int  # weights that all peers exchange
    structure_numbers: int  # weights of one class
    classes: int
    layers: tuple[str, ...] = ()  # the decoupled layers; empty if only a profile is known
    dense_parameters: int = 0  # of the network before it is decoupled
    own_parameters: int = 0  # of the decoupled network with all classes

    def work(self, held: int) -> list[float]:
        """By layer: the share of the whole layer's work that `held` classes need."""
        return self.shares.at(held)

    @cached_property
    def words(self) -> dict[str, object]:
        """What the network becomes, for the plan's decisions."""
        if not self.layers:
            return {"network": "only a profile was given: whether it can be decoupled is not known"}
        return {
            "taken_apart": list(self.layers),
            "parameters": {"given": self.dense_parameters, "becomes": self.own_parameters},
        }


def parts_of(task: Task, *, plus: bool) -> Parts:
    """The numbers for a task; InputError if its network cannot be decoupled."""
    return _estimate(task, plus) if task.graph is None else _exact(task, task.graph, plus)


def _exact(task: Task, graph: Graph, plus: bool) -> Parts:
    most = len(countable(graph)) - 1
    if most < 1:
        read_classes(graph)  # raises an InputError that says why not
    percents = filter_percents(task, most, plus=plus)
    reading = read_classes(graph, len(percents))
    counts = reading.counts(percents)
    one, two, whole = (
        class_graph(reading, [Bank(count, counts)]) for count in (1, 2, reading.classes)
    )

    def flops(part: Graph) -> list[float]:
        pairs = zip(part.layers, graph.layers, strict=True)
        return [own.forward_flops / (dense.forward_flops or 1.0) for own, dense in pairs]

    def weights(part: Graph) -> list[float]:
        return [float(part.param_bytes(i)) for i in range(len(part.layers))]

    def saved(part: Graph) -> list[float]:
        return [float(layer.saved_bytes) for layer in part.layers]

    return Parts(
        tuple(percents),
        _linear(flops(one), flops(two)),
        _linear(weights(one), weights(two)),
        _linear(saved(one), saved(two)),
        _numbers(one, "shared."),
        _numbers(one, "banks."),
        reading.classes,
        reading.layers,
        graph.parameters,
        whole.parameters,
    )


def _linear(one: Sequence[float], two: Sequence[float]) -> Linear:
    each = [b - a for a, b in zip(one, two, strict=True)]
    return Linear(tuple(a - e for a, e in zip(one, each, strict=True)), tuple(each))


def _numbers(graph: Graph, prefix: str) -> int:
    return sum(prod(s.shape) for name, s in graph.state.items() if name.startswith(prefix))


def _estimate(task: Task, plus: bool) -> Parts:
    """Numbers from a profile. All layers but the head and one shared layer may be decoupled."""
    layers = task.profile.layers
    if len(layers) < 2:
        raise InputError(
            f"{task.profile.model} has only one layer; to decouple it needs one before its head: "
            "use a strategy that keeps the network whole"
        )
    percents = filter_percents(task, len(layers) - 2, plus=plus)
    kept = [percent / 100 for percent in percents]
    classes = layers[-1].output_bytes // NUMBER
    before = len(layers) - 1 - len(kept)
    # The first decoupled layer reads all shared channels.
    own = [i * o for i, o in pairwise([1.0, *kept])] + [kept[-1] / classes]
    shares = Linear((*[1.0] * before, *[0.0] * len(own)), (*[0.0] * before, *own))
    weights = Linear(
        tuple(layer.param_bytes * s for layer, s in zip(layers, shares.fixed, strict=True)),
        tuple(layer.param_bytes * s for layer, s in zip(layers, shares.each, strict=True)),
    )
    saved = Linear(
        tuple(layer.saved_bytes * s for layer, s in zip(layers, shares.fixed, strict=True)),
        tuple(layer.saved_bytes * s for layer, s in zip(layers, shares.each, strict=True)),
    )
    return Parts(
        tuple(percents), shares, weights, saved,
        round(sum(weights.fixed)) // NUMBER, max(1, round(sum(weights.each) / NUMBER)), classes,
    )  # fmt: skip
