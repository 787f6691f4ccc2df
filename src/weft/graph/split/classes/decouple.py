"""From a trained network to shared layers and one structure per class.

    dense = captured(net, x[:2])                             # its graph, and its weights as they are
    scores = score_filters(dense, x, y, last=3, how="activation")
    parts = decouple(dense, scores, last=3, keep=0.1)
    reestimate_norms(parts, x)                               # weft.graph.split.classes.calibrate

A filter may be copied into several classes. Keeping all filters reproduces the dense logits. What can be
decoupled is decided by the graph alone (`reader.py`), so a planner knows it before there are weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.errors import InputError
from weft.graph.capture.module import capture, state_of
from weft.graph.execute import Runner
from weft.graph.network import Graph, Segment
from weft.graph.split.classes.network import Blueprint, DecoupledNet, State, compose, rows_of
from weft.graph.split.classes.reader import read_classes
from weft.graph.split.classes.reading import Reading, Rule

Score = Literal["activation", "taylor", "random"]
Keep = float | Sequence[Sequence[int]]  # a share of every layer's filters, or numbers[class][layer]


@dataclass(frozen=True)
class Captured:
    """A network as a graph, and its weights."""

    graph: Graph
    state: Mapping[str, Tensor]


def captured(net: nn.Module, example: Tensor) -> Captured:
    """The network for decoupling; its weights are not copied."""
    return Captured(capture(net, example), state_of(net))


def score_filters(
    net: Captured, x: Tensor, y: Tensor, *, last: int, how: Score = "activation", seed: int = 0,
    batch: int = 256,
) -> list[Tensor]:  # fmt: skip
    """How much each filter of each decoupled layer matters to each class: [layer][class, filter].

    `activation`: a class's mean activation times its share in the sum over all classes.
    `taylor`: mean of abs(activation * gradient of the loss) over the class's samples. `random`: a control.
    Layers whose outputs are added to each other have their filters in common: they are one entry.
    """
    if how not in get_args(Score):
        raise InputError(f"score {how!r} is not one of {', '.join(get_args(Score))}")
    reading = read_classes(net.graph, last)
    widths = reading.widths[:-1]
    if how == "random":
        generator = torch.Generator().manual_seed(seed)
        return [torch.rand(reading.classes, width, generator=generator) for width in widths]
    values = _Values(net, reading, how)
    sums = [torch.zeros(reading.classes, width) for width in widths]
    seen = torch.bincount(y, minlength=reading.classes).clamp_min(1)[:, None]
    for begin in range(0, len(x), batch):
        part, labels = x[begin : begin + batch], y[begin : begin + batch]
        for total, own in zip(sums, values.of(part, labels), strict=True):
            total.index_add_(0, labels, own)
    means = [total / seen for total in sums]
    if how == "taylor":
        return means
    return [mean * mean / mean.sum(0).clamp_min(1e-12) for mean in means]


class _Values:
    """Runs the dense network and gives, for each space, one number per sample and filter."""

    def __init__(self, net: Captured, reading: Reading, how: Score) -> None:
        self.reading, self.how, self.graph = reading, how, net.graph
        own = [m.source for m in reading.mixers if m.source in reading.kinds]
        self.read = list(dict.fromkeys(own))  # what decoupled layers read of each other
        segment = net.graph.segment(0, len(net.graph.layers) - 1)
        outputs = {name: net.graph.values[name] for name in [*self.read, net.graph.output]}
        segment = Segment(0, segment.last, segment.nodes, segment.inputs, outputs, segment.state)
        self.runner = Runner(segment, net.state)

    def of(self, x: Tensor, y: Tensor) -> list[Tensor]:
        with torch.set_grad_enabled(self.how == "taylor"):
            result = self.runner.forward({self.graph.inputs[0]: x})
            values = [result[name] for name in self.read]
            if self.how == "taylor":
                loss = functional.cross_entropy(result[self.graph.output], y, reduction="sum")
                slopes = torch.autograd.grad(loss, values)
                numbers = [
                    self._by_channel(name, value * slope).abs().detach()
                    for name, value, slope in zip(self.read, values, slopes, strict=True)
                ]
            else:
                numbers = [
                    self._by_channel(name, value.clamp_min(0))
                    for name, value in zip(self.read, values, strict=True)
                ]
        return self._by_space(numbers)

    def _by_channel(self, name: str, value: Tensor) -> Tensor:
        """The mean over each channel's map."""
        seen = self.reading.seen[name]
        width = sum(self.reading.widths[space] for space in seen.spaces)
        return value.reshape(len(value), width, -1).mean(2)

    def _by_space(self, numbers: Sequence[Tensor]) -> list[Tensor]:
        """The mean over all values that have the space's channels."""
        by_space: dict[int, list[Tensor]] = {}
        for name, number in zip(self.read, numbers, strict=True):
            spaces = self.reading.seen[name].spaces
            sizes = [self.reading.widths[space] for space in spaces]
            for space, part in zip(spaces, torch.split(number, sizes, 1), strict=True):
                by_space.setdefault(space, []).append(part)
        return [
            torch.stack(by_space[space]).mean(0) for space in range(len(self.reading.widths) - 1)
        ]


def numbers(scores: Sequence[Tensor], keep: Keep) -> list[list[int]]:
    """How many filters each class keeps in each layer: [class][layer]."""
    if not isinstance(keep, float | int):
        counts = [list(map(int, row)) for row in keep]
        good = len(counts) == len(scores[0]) and all(len(row) == len(scores) for row in counts)
        if not good or any(
            not 1 <= n <= s.shape[1] for row in counts for n, s in zip(row, scores, strict=True)
        ):
            sizes = [s.shape[1] for s in scores]
            raise InputError(
                f"filters to keep {counts}: one row for each of {len(scores[0])} classes is needed, "
                f"with 1 up to {sizes} filters"
            )
        return counts
    if not 0 < keep <= 1:
        raise InputError(f"keep = {keep} of the filters; a share above 0 and up to 1 is allowed")
    return by_layer(scores, [keep] * len(scores))


def by_layer(scores: Sequence[Tensor], shares: Sequence[float]) -> list[list[int]]:
    """Numbers of filters for `decouple`: a share of each layer's filters, the same for all classes."""
    row = [max(1, round(share * s.shape[1])) for share, s in zip(shares, scores, strict=True)]
    return [list(row) for _ in scores[0]]


def by_importance(scores: Sequence[Tensor], shares: Sequence[float]) -> list[list[int]]:
    """Numbers of filters for `decouple`: more for classes that need more filters. The mean stays as given.

    A class whose activity is spread over many filters needs more of them. A third of the classes keeps
    a quarter less than the share, a third a quarter more: three sizes, so that they run as three banks.
    """
    need = torch.zeros(len(scores[0]))
    for score in scores:
        mass = score / score.sum(1, keepdim=True).clamp_min(1e-12)
        # The number of equally active filters with the same spread.
        need += 1 / mass.square().sum(1).clamp_min(1e-12)
    rank = need.argsort().argsort()
    third = len(need) // 3
    rows = []
    for place in rank.tolist():
        factor = 0.75 if place < third else 1.25 if place >= len(need) - third else 1.0
        rows.append(
            [
                min(s.shape[1], max(1, round(factor * share * s.shape[1])))
                for s, share in zip(scores, shares, strict=True)
            ]
        )
    return rows


def decouple(net: Captured, scores: Sequence[Tensor], *, last: int, keep: Keep) -> DecoupledNet:
    """The trained network as shared layers and structures; keep=1.0 reproduces its logits."""
    reading = read_classes(net.graph, last)
    counts = numbers(scores, keep)
    # Ascending numbers, so that keeping all filters keeps their order. Of the logits a class has its own.
    chosen = {
        label: (
            *(s[label].topk(n).indices.sort().values for n, s in zip(row, scores, strict=True)),
            torch.tensor([label]),
        )
        for label, row in enumerate(counts)
    }
    shared = {name: net.state[name].detach() for name in reading.shared_state}
    fixed = {name: t for name, t in shared.items() if not t.is_floating_point()}
    blueprint = Blueprint(reading, chosen, fixed)
    structures = {label: _structure(net, reading, own) for label, own in chosen.items()}
    weights = {name: t for name, t in shared.items() if name not in fixed}
    return compose(blueprint, weights, structures)


def _structure(net: Captured, reading: Reading, chosen: Sequence[Tensor]) -> State:
    """One class's filters out of the dense layers."""
    state = {
        name: _part(reading, rule, net.state[name].detach(), chosen)
        for name, rule in reading.rules.items()
    }
    state.setdefault(reading.head_bias, torch.zeros(1))
    return state


def _part(reading: Reading, rule: Rule, tensor: Tensor, chosen: Sequence[Tensor]) -> Tensor:
    seen = tensor.reshape(rule.seen_as) if rule.seen_as else tensor
    own = seen[rows_of(reading, chosen, rule.rows)]
    if rule.columns:
        own = own[:, rows_of(reading, chosen, rule.columns)]
    return own.clone()
