"""What CoopAI's planners need of a network: for each layer, which rows come from which, and the work.

    geometry = geometry_of(in_sequence(graph))
    geometry.layers[0].steps       # a convolution and what follows it: windows of rows
    geometry.layers[-1].outputs    # a fully connected layer: its units

A layer has one of three kinds. RowLayer: a convolution with activations and pools; each device computes
some rows. DenseLayer: a fully connected layer on a vector. Uncut: all others; one device computes it whole.

The paper cuts feature maps and knows only windows of rows. With `gathers` more can be cut: sequences of
tokens, signals, and operators that need all rows of a second value for some rows of the first (attention, or
a map that is multiplied with weights of its channels).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from weft.errors import InputError
from weft.graph.network import Graph, Layer, Node, refs
from weft.graph.operators.rows import Rule, is_map
from weft.graph.operators.table import operator_named
from weft.graph.split.rows import row_view, rule_of

VALUE_BYTES = 4


@dataclass(frozen=True)
class Step:
    """One operator of a RowLayer: a row of `out` needs a window of rows of each of `reads`."""

    out: str
    reads: tuple[str, ...]
    rule: Rule
    flops: float  # per row of `out`
    whole: tuple[str, ...] = ()  # values of which any row of `out` needs all rows


@dataclass(frozen=True)
class RowLayer:
    """A layer that can be cut by rows."""

    steps: tuple[Step, ...]
    flops: float
    after: bool  # the last operators read all rows, and the gateway computes them

    @property
    def output(self) -> str:
        """The value that the layer's last step makes."""
        return self.steps[-1].out


@dataclass(frozen=True)
class DenseLayer:
    """A fully connected layer, which can be cut by inputs or outputs."""

    inputs: int
    outputs: int
    flops: float
    flattens: str | None  # the map that it reads as a flat vector; None if there is none


@dataclass(frozen=True)
class Uncut:
    """A layer that one device computes whole."""

    flops: float


AnyLayer = RowLayer | DenseLayer | Uncut


@dataclass(frozen=True)
class Geometry:
    """A network's layers with their sizes, as the search needs them."""

    name: str
    layers: tuple[AnyLayer, ...]
    cuts: tuple[tuple[str, ...], ...]  # values that cross the cut after the first m layers
    heights: dict[str, int]  # rows of every feature map
    widths: dict[str, int]  # numbers in one row of it
    sizes: dict[str, int]  # numbers in every value
    made: dict[str, int]  # the layer that makes a value; -1 for the input
    read: dict[str, tuple[int, ...]]  # the layers that read it
    relayed: frozenset[str] = frozenset()  # for both see passthrough.py
    taps: frozenset[str] = frozenset()

    @cached_property
    def flops(self) -> float:
        """FLOPs of the whole network for one sample."""
        return sum(layer.flops for layer in self.layers)

    @property
    def inputs(self) -> int:
        """The number of input numbers."""
        return sum(self.sizes[name] for name in self.cuts[0])

    @property
    def outputs(self) -> int:
        """The number of output numbers."""
        return sum(self.sizes[name] for name in self.cuts[-1])

    def rows(self, index: int) -> RowLayer | None:
        """The layer if it can be cut by rows; else None."""
        layer = self.layers[index]
        return layer if isinstance(layer, RowLayer) else None

    def is_rows(self, index: int) -> bool:
        """Whether this layer exists and can be cut by rows."""
        return index < len(self.layers) and isinstance(self.layers[index], RowLayer)


def geometry_of(graph: Graph, gathers: bool = False) -> Geometry:
    """The geometry of a graph with its layers in sequence; with `gathers`, of everything that can be cut."""
    from weft.graph.costs import forward_flops  # imports torch, so it is imported only when needed

    if len(graph.inputs) > 1 or graph.further_outputs:
        raise InputError(
            f"{graph.name} has {len(graph.inputs)} inputs and {len(graph.outputs)} outputs; networks that "
            "are cut by rows have one of each. Choose a strategy that cuts between layers, such as chain"
        )
    layers: list[AnyLayer] = []
    for layer in graph.layers:
        flops = {n.name: forward_flops(n, graph.values, graph.state) for n in layer.nodes}
        rows = _gathering(graph, layer, flops) if gathers else _row_layer(graph, layer, flops)
        layers.append(rows or _dense_layer(graph, layer))
    made: dict[str, int] = dict.fromkeys(graph.inputs, -1)
    read: dict[str, list[int]] = {}
    for index, layer in enumerate(graph.layers):
        for node in layer.nodes:
            made[node.name] = index
            for name in refs(node):
                if index not in read.setdefault(name, []):
                    read[name].append(index)
    values = graph.values
    heights = {name: value.shape[2] for name, value in values.items() if is_map(value)}
    if gathers:
        heights = row_view(graph).heights
    return Geometry(
        name=graph.name,
        layers=tuple(layers),
        cuts=tuple(graph.cuts),
        heights=heights,
        widths={
            name: values[name].bytes // VALUE_BYTES // height
            for name, height in heights.items()
            if name in values
        },
        sizes={name: value.bytes // VALUE_BYTES for name, value in graph.values.items()},
        made=made,
        read={name: tuple(layer_numbers) for name, layer_numbers in read.items()},
    )


def check_rows(geometry: Geometry) -> None:
    """InputError if no layer can be cut by rows: these strategies are not for such a network."""
    if not any(isinstance(layer, RowLayer) for layer in geometry.layers):
        raise InputError(
            f"{geometry.name} has no layer that can be cut by rows "
            f"(0 of its {len(geometry.layers)} layers); coopai and sls are for networks with "
            "convolutions over images, coopai+ also for signals and sequences of tokens: choose another "
            "strategy, such as chain"
        )


def _row_layer(graph: Graph, layer: Layer, flops: dict[str, float]) -> RowLayer | None:
    """The layer's operators that can be cut by rows; those after the last of them are `after`."""
    steps: list[Step] = []
    after = False
    for node in layer.nodes:
        rule = rule_of(graph, node)
        if rule is None or rule.whole or not rule.maps or not rule.plain:
            after = True
            continue
        if after:
            return None  # an operator by rows comes after one that needs all rows
        height = graph.values[node.name].shape[2]
        steps.append(Step(node.name, rule.maps, rule, flops[node.name] / height))
    if not steps or not any(step.flops for step in steps):
        return None
    return RowLayer(tuple(steps), layer.forward_flops, after)


def _gathering(graph: Graph, layer: Layer, flops: dict[str, float]) -> RowLayer | None:
    """The layer's operators that can be cut by rows in any way. The gateway computes operators that follow
    one that cannot be cut."""
    view = row_view(graph)
    steps: list[Step] = []
    gone: set[str] = set()
    for node in layer.nodes:
        if node.name in graph.values and not graph.values[node.name].scales:
            continue  # a constant: each device that needs it makes it
        rule = view.rules[node.name]
        if rule is None or not rule.maps or not gone.isdisjoint(refs(node)):
            gone.add(node.name)
            continue
        whole = tuple(name for name in rule.whole if name in view.heights)
        each = flops[node.name] / view.heights[node.name]
        steps.append(Step(node.name, rule.maps, rule, each, whole))
    if not steps or not any(step.flops for step in steps):
        return None
    if any(flops[name] for name in gone):
        return None  # the gateway gets only operators that cost no time
    return RowLayer(tuple(steps), layer.forward_flops, bool(gone))


def _dense_layer(graph: Graph, layer: Layer) -> DenseLayer | Uncut:
    dense = [node for node in layer.nodes if operator_named(node.op).units == "dense"]
    if len(dense) != 1:
        return Uncut(layer.forward_flops)
    node, value = dense[0], graph.values[dense[0].name]
    if len(value.shape) != 2 or value.batch_dim != 0:  # tokens and samples may be one dimension
        return Uncut(layer.forward_flops)
    source = refs(node)[0]
    if source not in graph.values:
        return Uncut(layer.forward_flops)
    return DenseLayer(
        inputs=graph.values[source].shape[1],
        outputs=graph.values[node.name].shape[1],
        flops=layer.forward_flops,
        flattens=_flattened(graph, layer, source),
    )


def _flattened(graph: Graph, layer: Layer, source: str) -> str | None:
    """The map that a fully connected layer reads as a vector, if it is only flattened; else None."""
    made: dict[str, Node] = {node.name: node for node in layer.nodes}
    while source in made and operator_named(made[source].op).units == "reshape":
        source = refs(made[source])[0]
    return source if is_map(graph.values.get(source)) else None
