"""What decoupling makes of a captured network: what stays shared, and which channels a class may own.

    reading = read_classes(capture(net, example), last=3)       # reader.py
    reading.layers            # names of the layers that are taken apart, in order
    reading.widths            # channels that are chosen together, by space; the logits' last

A *mixing* layer (a convolution without groups, a dense layer) makes new channels of all channels that it
reads. The last few of them, and all that depends on them, are taken apart; the rest stays shared. Between
mixing layers each channel goes its own way: activations, pools, batch norms and depthwise convolutions keep
them, a sum of two maps ties them together, a concatenation puts them in a row. A channel that a class does
not keep is left out everywhere at once, so any network of such layers can be taken apart, with skip
connections or without. What mixes channels in another way is refused, with the layer's name.

Plain data: no tensor is touched, so that planners may ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from weft.graph.network import Graph, Node, refs
from weft.graph.operators.table import operator_named

# mix: makes new channels. keep: each channel by itself. join: channels in a row. flat: the same numbers
# without rows and columns. mean: the average of each channel's map.
Kind = Literal["mix", "keep", "join", "flat", "mean"]


@dataclass(frozen=True)
class Seen:
    """A value with channels of its own: which ones, and the rows and columns of its map (1x1: a vector)."""

    spaces: tuple[int, ...]
    side: tuple[int, int]


@dataclass(frozen=True)
class Rule:
    """How a class's part of a tensor is taken: rows and columns by spaces, the tensor seen in a shape.

    No columns: all of them. `seen_as` (): as it is.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...] = ()
    seen_as: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mixer:
    """One layer that makes channels. `counted`: it is one of those that `last` counts."""

    node: Node
    name: str
    weight: str
    bias: str | None
    source: str
    space: int
    counted: bool


@dataclass(frozen=True)
class Reading:
    """A network as shared nodes and decoupled ones."""

    graph: Graph
    kinds: dict[str, Kind]  # of each decoupled node
    seen: dict[str, Seen]  # of each decoupled value, and of shared ones whose channels are picked
    picked: frozenset[str]  # shared values of which a class reads some channels only
    rules: dict[str, Rule]  # of each tensor that belongs to structures
    mixers: tuple[Mixer, ...]
    widths: tuple[int, ...]  # channels of each space; the last one's are the classes

    @property
    def classes(self) -> int:
        return self.widths[-1]

    @property
    def head(self) -> Mixer:
        """The layer that gives the logits."""
        return next(mixer for mixer in self.mixers if mixer.space == len(self.widths) - 1)

    @property
    def head_bias(self) -> str:
        """Its bias, which a class always has: calibration needs one."""
        return self.head.bias or f"{self.head.weight}_bias"

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that are taken apart, the one of the logits last."""
        return tuple(mixer.name for mixer in self.mixers)

    @cached_property
    def shared_state(self) -> tuple[str, ...]:
        """Names of the tensors that all classes share; counters of batches are left out."""
        read = dict.fromkeys(
            name
            for layer in self.graph.layers
            for node in layer.nodes
            if not operator_named(node.op).training_only
            for name in refs(node)
        )
        return tuple(n for n in read if n in self.graph.state and n not in self.rules)

    def shares(self, percents: Sequence[float]) -> list[float]:
        """The share of its channels that a class keeps, by space but for the logits'.

        `percents`: by counted layer. Dense layers after them keep what the last one keeps. Channels that
        several layers make together keep what the first of them keeps.
        """
        shared: dict[int, float] = {}
        counted = iter(percents)
        now = percents[0]
        for mixer in self.mixers:
            now = next(counted, now) if mixer.counted else now
            shared.setdefault(mixer.space, now / 100)
        return [shared.get(space, percents[0] / 100) for space in range(len(self.widths) - 1)]

    def counts(self, percents: Sequence[float]) -> tuple[int, ...]:
        """How many channels a class keeps of each space."""
        kept = zip(self.shares(percents), self.widths, strict=False)
        return (*(max(1, round(share * width)) for share, width in kept), 1)
