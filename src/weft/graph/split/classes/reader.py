"""Reads a captured network for decoupling, node by node, and refuses what cannot be taken apart.

    reading = read_classes(graph, last=3)

The words are those of `reading.py`. A node is decoupled where it is one of the layers that `last` counts, or
reads what such a node has made.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod

from weft.errors import InputError
from weft.graph.network import Graph, Node, Ref, Value, refs
from weft.graph.operators.calls import CONVOLUTION, DENSE
from weft.graph.operators.rows import argument
from weft.graph.operators.table import operator_named
from weft.graph.split.classes.reading import Kind, Mixer, Reading, Rule, Seen
from weft.graph.split.classes.spaces import Spaces

_FLATTENS = ("aten.flatten.", "aten.view.", "aten.reshape.", "aten.squeeze.")
_SPATIAL = ("aten.pad.", "aten.upsample_nearest2d.")  # change rows and columns only
_LINEAR = ("aten.adaptive_avg_pool2d.", "aten.avg_pool2d.", "aten.alias.", "aten.contiguous.")


def read_classes(graph: Graph, last: int | None = None) -> Reading:
    """What decoupling the last `last` convolutions makes of a network (by default three, or all but one).

    InputError that names the layer where it cannot be done.
    """
    return _Reader(graph, last).read()


def countable(graph: Graph) -> list[str]:
    """Names of the nodes that `last` counts: convolutions, or dense layers where there are less than two."""
    nodes = [node for layer in graph.layers for node in layer.nodes if _mixes(node, graph)]
    head = _last_mixing(graph)
    nodes = [node for node in nodes if node.name != head]
    convolutions = [node.name for node in nodes if node.op == CONVOLUTION]
    return convolutions if len(convolutions) > 1 else [node.name for node in nodes]


def _mixes(node: Node, graph: Graph) -> bool:
    if node.op not in (CONVOLUTION, DENSE) or not isinstance(node.args[1], Ref):
        return False
    known = node.args[1].name in graph.state
    return known and (node.op == DENSE or argument(node, 6, "groups", 1) == 1)


def _last_mixing(graph: Graph) -> str:
    """The mixing layer nearest to the output, or "" where others lie in between."""
    made = {node.name: node for layer in graph.layers for node in layer.nodes}
    name = graph.output
    while name in made and not _mixes(made[name], graph):
        read = [r for r in refs(made[name]) if r not in graph.state]
        name = read[0] if read else ""
    return name if name in made else ""


@dataclass
class _Reader:
    graph: Graph
    last: int | None
    kinds: dict[str, Kind] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)
    picked: set[str] = field(default_factory=set)
    rules: dict[str, Rule] = field(default_factory=dict)
    mixers: list[Mixer] = field(default_factory=list)
    spaces: Spaces = field(default_factory=Spaces)
    counted: set[str] = field(default_factory=set)  # nodes that `last` counts
    used: Counter[str] = field(default_factory=Counter)  # how many nodes read a name

    def read(self) -> Reading:
        graph = self.graph
        if len(graph.inputs) != 1:
            raise InputError(f"{graph.name} has {len(graph.inputs)} inputs; one can be decoupled")
        if graph.further_outputs:
            raise InputError(
                f"{graph.name} returns {len(graph.outputs)} tensors; to be decoupled it must return one, "
                "the logits"
            )
        shape = graph.values[graph.output].shape
        if len(shape) != 2 or graph.values[graph.output].batch_dim != 0:
            raise InputError(
                f"{graph.name} gives {'x'.join(map(str, shape[1:])) or 'no'} numbers for a sample; to be "
                "decoupled it must give one row of logits, a number for each class"
            )
        self.counted = self._counted()
        nodes = [node for layer in graph.layers for node in layer.nodes]
        self.used = Counter(name for node in nodes for name in refs(node))
        for node in nodes:
            if operator_named(node.op).training_only:
                continue
            if node.name in self.counted or any(name in self.kinds for name in refs(node)):
                self._node(node)
        return self._result()

    def _counted(self) -> set[str]:
        names = countable(self.graph)
        if len(names) < 2:
            raise InputError(
                f"{self.graph.name} cannot be decoupled into classes: it has {len(names)} layers of channels "
                "(convolutions, dense layers) before its last one, and two are needed: one that stays "
                "shared and one that is taken apart"
            )
        last = min(3, len(names) - 1) if self.last is None else self.last
        if not 1 <= last < len(names):
            raise InputError(
                f"last = {last} convolutions to decouple; {self.graph.name} has {len(names)} and at least "
                f"one must stay shared: 1 to {len(names) - 1} are allowed"
            )
        return set(names[-last:])

    # --- one node -------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        if _mixes(node, self.graph):
            self._mix(node)
        elif node.op == CONVOLUTION:
            self._depthwise(node)
        elif node.op.startswith("aten.mean."):
            self._mean(node)
        elif node.op.startswith("aten.cat."):
            self._join(node)
        elif node.op.startswith(_FLATTENS):
            self._flat(node)
        elif node.op.startswith("aten.batch_norm."):
            self._norm(node)
        elif operator_named(node.op).units in ("elementwise", "per_channel"):
            self._keep(node)
        elif node.op.startswith(_SPATIAL):
            self._spatial(node)
        else:
            raise self._refused(
                node, "it mixes channels in a way that no class could own a part of"
            )

    def _mix(self, node: Node) -> None:
        source, weight = node.args[0], node.args[1]
        bias = argument(node, 2, "bias", None)
        assert isinstance(source, Ref)
        assert isinstance(weight, Ref)
        value, shape = self._value(node), self.graph.state[weight.name].shape
        if len(value.shape) != (4 if node.op == CONVOLUTION else 2):
            raise self._refused(node, "it must work on maps, or on one vector for each sample")
        space = self.spaces.new(shape[0])
        columns: tuple[int, ...] = ()
        seen_as: tuple[int, ...] = ()
        if source.name in self.kinds:
            columns = self.seen[source.name].spaces
            if node.op == DENSE:
                seen_as = (shape[0], self.spaces.width(columns), *self.seen[source.name].side)
        self._own(node, weight.name, Rule((space,), columns, seen_as))
        if isinstance(bias, Ref):
            self._own(node, bias.name, Rule((space,)))
        rows, cols = value.shape[2:] if node.op == CONVOLUTION else (1, 1)
        self._made(node, "mix", Seen((space,), (rows, cols)))
        name = self._name(node)
        self.mixers.append(
            Mixer(node, name, weight.name, bias.name if isinstance(bias, Ref) else None, source.name,
                  space, node.name in self.counted)
        )  # fmt: skip

    def _depthwise(self, node: Node) -> None:
        source, weight = node.args[0], node.args[1]
        groups = argument(node, 6, "groups", 1)
        shape = self.graph.state[weight.name].shape if isinstance(weight, Ref) else ()
        known = isinstance(source, Ref) and source.name in self.kinds and shape
        if not known or not groups == shape[0] == self.spaces.width(self._of(source).spaces):
            raise self._refused(
                node, f"of grouped convolutions only depthwise ones can be (it has {groups} groups)"
            )
        spaces = self._of(source).spaces
        assert isinstance(weight, Ref)
        self._own(node, weight.name, Rule(spaces))
        bias = argument(node, 2, "bias", None)
        if isinstance(bias, Ref):
            self._own(node, bias.name, Rule(spaces))
        rows, columns = self._value(node).shape[2:]
        self._made(node, "keep", Seen(spaces, (rows, columns)))

    def _mean(self, node: Node) -> None:
        dims = argument(node, 1, "dim", None)
        source = node.args[0]
        assert isinstance(source, Ref)
        over = sorted(d % 4 for d in dims) if isinstance(dims, list) else []
        if len(self.graph.values[source.name].shape) != 4 or over != [2, 3]:
            raise self._refused(node, "an average must be over the rows and columns of a map")
        self._made(node, "mean", Seen(self._of(source).spaces, (1, 1)))

    def _join(self, node: Node) -> None:
        parts, value = node.args[0], self._value(node)
        if not isinstance(parts, list) or argument(node, 1, "dim", 0) not in (
            1,
            1 - len(value.shape),
        ):
            raise self._refused(node, "only channels can be put in a row")
        spaces: tuple[int, ...] = ()
        sides = set()
        for part in parts:
            assert isinstance(part, Ref)
            seen = self._of(part) if part.name in self.kinds else self._pick(node, part.name)
            spaces += seen.spaces
            sides.add(seen.side)
        if len(sides) != 1 or (len(value.shape) == 2 and sides != {(1, 1)}):
            raise self._refused(node, "only maps of one size can be put in a row")
        self._made(node, "join", Seen(spaces, sides.pop()))

    def _flat(self, node: Node) -> None:
        """The same numbers in another shape: without rows and columns, or with one of each."""
        source = node.args[0]
        assert isinstance(source, Ref)
        seen, value = self._of(source), self._value(node)
        width = self.spaces.width(seen.spaces) * prod(seen.side)
        if value.batch_dim != 0 or value.shape not in (
            (1, width), (1, width, *([1] * (len(value.shape) - 2))),
        ):  # fmt: skip
            raise self._refused(node, "it changes the shape of more than rows and columns")
        self._made(node, "flat", seen)

    def _norm(self, node: Node) -> None:
        source = node.args[0]
        assert isinstance(source, Ref)
        seen = self._of(source)
        for arg in node.args[1:5]:
            if isinstance(arg, Ref):
                if self.graph.state[arg.name].shape[0] != self.spaces.width(seen.spaces):
                    raise self._refused(node, "it has more than one number for a channel")
                self._own(node, arg.name, Rule(seen.spaces))
        self._made(node, "keep", seen)

    def _spatial(self, node: Node) -> None:
        source = node.args[0]
        assert isinstance(source, Ref)
        amounts = argument(node, 1, "pad", [])
        if node.op.startswith("aten.pad.") and len(amounts) > 4:
            raise self._refused(node, "it pads channels")
        rows, columns = self._value(node).shape[2:]
        self._made(node, "keep", Seen(self._of(source).spaces, (rows, columns)))

    def _keep(self, node: Node) -> None:
        """One channel of the result from that channel of each operand."""
        value = self._value(node)
        operands = [name for name in refs(node) if name not in self.graph.state]
        own = [name for name in operands if name in self.kinds]
        seen = self.seen[own[0]]
        for name in own[1:]:
            self._tie(node, seen.spaces, self.seen[name].spaces)
            seen = Seen(seen.spaces, self._wider(node, seen.side, self.seen[name].side))
        for name in operands:
            if name not in self.kinds and self._has_channels(value, self.graph.values[name].shape):
                other = self._pick(node, name)
                self._tie(node, seen.spaces, other.spaces)
                seen = Seen(seen.spaces, self._wider(node, seen.side, other.side))
        for name in refs(node):
            if name in self.graph.state:
                self._weight_of_channels(node, name, seen, value)
        if len(value.shape) == 4:
            seen = Seen(seen.spaces, (value.shape[2], value.shape[3]))
        self._made(node, "keep", seen)

    def _weight_of_channels(self, node: Node, name: str, seen: Seen, value: Value) -> None:
        """A scale or a slope with one number for each channel."""
        shape, width = self.graph.state[name].shape, self.spaces.width(seen.spaces)
        slope = node.op.startswith("aten.prelu.")
        placed = slope or self._has_channels(value, shape)
        flattened = len(value.shape) == 2 and seen.side != (1, 1)
        if prod(shape) != width or width == 1 or not placed or flattened:
            raise self._refused(node, f"{name} is not one number for each of its {width} channels")
        form = (width,) if slope else (width, 1, 1)
        self._own(node, name, Rule(seen.spaces, (), form))

    # --- channels -------------------------------------------------------------------------------

    def _has_channels(self, value: Value, shape: tuple[int, ...]) -> bool:
        """Whether an operand has a number for each channel of the value, and not one for all."""
        at = len(shape) - (len(value.shape) - 1)
        return at >= 0 and shape[at] != 1

    def _pick(self, node: Node, name: str) -> Seen:
        """A shared value of which each class reads its own channels."""
        if name not in self.picked:
            value = self.graph.values[name]
            if value.batch_dim != 0 or len(value.shape) not in (2, 4):
                raise self._refused(node, f"it reads {name}, which is neither a map nor a vector")
            side = value.shape[2:] if len(value.shape) == 4 else (1, 1)
            self.picked.add(name)
            self.seen[name] = Seen((self.spaces.new(value.shape[1]),), (side[0], side[1]))
        return self.seen[name]

    def _tie(self, node: Node, one: tuple[int, ...], other: tuple[int, ...]) -> None:
        if not self.spaces.tie(one, other):
            raise self._refused(node, "it ties channels of different layers in different ways")

    def _wider(self, node: Node, one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        if one != other and (1, 1) not in (one, other):
            raise self._refused(node, f"maps of {one} and {other} rows and columns meet")
        return max(one, other)

    def _of(self, source: object) -> Seen:
        assert isinstance(source, Ref)
        return self.seen[source.name]

    def _value(self, node: Node) -> Value:
        if node.name not in self.graph.values:
            raise self._refused(node, "it gives more than one tensor")
        return self.graph.values[node.name]

    def _own(self, node: Node, name: str, rule: Rule) -> None:
        if self.used[name] > 1 or not self.graph.state[name].dtype.startswith("float"):
            raise self._refused(node, f"{name} is used in several places, or is no real number")
        self.rules[name] = rule

    def _made(self, node: Node, kind: Kind, seen: Seen) -> None:
        self.kinds[node.name], self.seen[node.name] = kind, seen

    # --- the end --------------------------------------------------------------------------------

    def _result(self) -> Reading:
        graph = self.graph
        logits = [self.spaces.root(space) for space in self.seen[graph.output].spaces]
        makers = [m for m in self.mixers if self.spaces.root(m.space) == logits[0]]
        if len(logits) != 1 or len(makers) != 1 or self.seen[graph.output].side != (1, 1):
            raise InputError(
                f"{graph.name} cannot be decoupled into classes: its logits must come from one layer "
                f"(they come from {', '.join(m.name for m in makers) or 'several'})"
            )
        self._check_end(makers[0])
        ordered = self.spaces.in_order(logits[0])
        number = {root: n for n, root in enumerate(ordered)}

        def renumbered(spaces: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(number[self.spaces.root(space)] for space in spaces)

        return Reading(
            graph,
            self.kinds,
            {name: Seen(renumbered(s.spaces), s.side) for name, s in self.seen.items()},
            frozenset(self.picked),
            {
                name: Rule(renumbered(r.rows), renumbered(r.columns), r.seen_as)
                for name, r in self.rules.items()
            },
            tuple(
                Mixer(
                    m.node,
                    m.name,
                    m.weight,
                    m.bias,
                    m.source,
                    number[self.spaces.root(m.space)],
                    m.counted,
                )
                for m in self.mixers
            ),
            tuple(self.spaces.widths[root] for root in ordered),
        )

    def _check_end(self, head: Mixer) -> None:
        """After the layer of the logits only averages and changes of shape: calibration scales them."""
        nodes = {node.name: node for layer in self.graph.layers for node in layer.nodes}
        name = self.graph.output
        while name != head.node.name:
            node = nodes[name]
            if self.kinds[name] not in ("mean", "flat") and not node.op.startswith(_LINEAR):
                raise self._refused(
                    node,
                    f"it follows {head.name}, which gives the logits; a network must end in its logits",
                )
            name = next(r for r in refs(node) if r in self.kinds)

    def _name(self, node: Node) -> str:
        """The module whose weights a node reads, else the layer that it is in."""
        weights = [name for name in refs(node) if name in self.graph.state]
        if weights:
            return weights[0].rpartition(".")[0] or weights[0]
        return next(
            layer.name for layer in self.graph.layers if any(n is node for n in layer.nodes)
        )

    def _refused(self, node: Node, why: str) -> InputError:
        word = node.op.removeprefix("aten.").partition(".")[0]
        return InputError(
            f"{self.graph.name} cannot be decoupled into classes: layer {self._name(node)} ({word}): {why}. "
            "Choose a smaller last, so that this layer stays shared, or a strategy that keeps the "
            "network whole"
        )
