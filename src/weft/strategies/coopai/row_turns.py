"""A device's turns in a round that is cut by rows: one turn, or the inner rows first.

row_turns(job, "r1", {"conv2": (0, 28)}, own=None, halves=0.0)      # one turn for rows 0 to 27
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from weft.graph.network import Graph, Layer, Node, Value, refs
from weft.graph.operators.rows import Range
from weft.graph.operators.table import operator_named
from weft.graph.split.divide import Division, is_constant, reads, weighted
from weft.graph.split.rows import cut_dim, needed_rows, places, rows_made
from weft.graph.split.slices import value_of
from weft.plans.rounds import Strip, Turn

# A turn without its device.
_Part = tuple[tuple[Strip, ...], tuple[Strip, ...], tuple[float, ...], int]
_Wanted = tuple[tuple[str, Range], ...]
# By device and value: the places that it made in earlier rounds.
Owned = dict[str, dict[str, Range]]


def strip_of(graph: Graph, name: str, part: Range | None = None) -> Strip:
    """A strip of a value, or of partial sums: these places, or all of them."""
    value = value_of(graph, name)
    count = places(graph, name)
    first, last = part or (0, count)
    return Strip(name, first, last, value.bytes // count, cut_dim(graph, name))


def state_bytes(graph: Graph, nodes: Iterable[Node]) -> int:
    """Bytes of the weights that these nodes read."""
    names = {name for node in nodes for name in refs(node) if name in graph.state}
    return sum(graph.state[name].bytes for name in names)


class Rows:
    """Layers of which a device computes some rows. A turn that was asked for before is not computed again."""

    def __init__(self, graph: Graph, layers: Sequence[Layer], made: Division) -> None:
        self.graph, self.layers, self.made = graph, layers, made
        self.inputs = reads(graph, made.own)
        self._bytes = state_bytes(graph, made.own)
        own = {node.name for node in made.own if not is_constant(graph, node.name)}
        self._turns: dict[_Wanted, _Part] = {}
        self.parts: dict[tuple[_Wanted, _Wanted | None, float], list[dict[str, Range]]] = {}
        self._heavy = [_heavy(graph, [n for n in layer.nodes if n.name in own]) for layer in layers]

    def turn(self, device: str, wanted: Mapping[str, Range]) -> Turn:
        """The turn in which a device makes the wanted rows."""
        key = tuple(wanted.items())
        if key not in self._turns:
            self._turns[key] = self._turn(wanted)
        takes, gives, work, size = self._turns[key]
        return Turn(device, takes, gives, work, size)

    def _turn(self, wanted: Mapping[str, Range]) -> _Part:
        rows = needed_rows(self.graph, self.made.own, wanted, self.made.rules)
        takes = tuple(strip_of(self.graph, n, rows[n]) for n in self.inputs if n in rows)
        gives = tuple(strip_of(self.graph, name, part) for name, part in wanted.items())
        work = tuple(_computed(nodes, rows) for nodes in self._heavy)
        done = [node for node in self.made.own if node.name in rows]
        size = self._bytes if len(done) == len(self.made.own) else state_bytes(self.graph, done)
        return takes, gives, work, size

    def inner(self, wanted: Mapping[str, Range], own: Mapping[str, Range]) -> dict[str, Range]:
        """The wanted rows for which the device needs only what it has itself."""
        made = rows_made(self.graph, self.made.own, own, self.made.rules)
        ranges = {
            name: (max(first, made[name][0]), min(last, made[name][1]))
            for name, (first, last) in wanted.items()
            if name in made
        }
        return _nonempty(ranges)


def row_turns(
    job: Rows,
    device: str,
    wanted: Mapping[str, Range],
    own: Mapping[str, Range] | None,
    halves: float,
) -> list[Turn]:
    """The turns for the wanted rows.

    `own` are the rows that the device has; None means one turn without overlap. With `own`, rows that need
    nothing from others come first. `halves`: see `slicing.rounds_of`.
    """
    key = (tuple(wanted.items()), None if own is None else tuple(own.items()), halves)
    if key not in job.parts:
        job.parts[key] = _parts(job, wanted, own, halves)
    return [job.turn(device, part) for part in job.parts[key]]


def _parts(
    job: Rows, wanted: Mapping[str, Range], own: Mapping[str, Range] | None, halves: float
) -> list[dict[str, Range]]:
    whole = [dict(wanted)]
    inner = {} if own is None else job.inner(wanted, own)
    if inner:
        return [inner, *_around(wanted, inner)]
    if own is None or own or not halves:
        return whole
    middle = {name: (first + last) // 2 for name, (first, last) in wanted.items()}
    upper = {name: (first, middle[name]) for name, (first, _) in wanted.items()}
    lower = {name: (middle[name], last) for name, (_, last) in wanted.items()}
    parts = [part for part in map(_nonempty, (upper, lower)) if part]
    work = [sum(sum(job.turn("", part).work) for part in some) for some in (parts, whole)]
    return parts if work[0] <= (1 + halves) * work[1] else whole


def _around(wanted: Mapping[str, Range], inner: Mapping[str, Range]) -> list[dict[str, Range]]:
    """The wanted rows above the inner ones, and those below."""
    above, below = {}, {}
    for name, (first, last) in wanted.items():
        top, bottom = inner.get(name, (last, last))
        above[name], below[name] = (first, top), (bottom, last)
    return [part for part in map(_nonempty, (above, below)) if part]


def _nonempty(parts: Mapping[str, Range]) -> dict[str, Range]:
    return {name: part for name, part in parts.items() if part[0] < part[1]}


def _heavy(graph: Graph, nodes: Sequence[Node]) -> list[tuple[str, float]]:
    """The operators of a layer that cost time, and the share of the layer's work in one row of each."""
    heavy = [node for node in nodes if weighted(graph, node) or _multiplies(graph, node)]
    heavy = heavy or list(nodes[-1:])
    costs = {node.name: _cost(graph, node) for node in heavy}
    total = sum(costs.values())
    return [(n, cost / total / places(graph, n)) for n, cost in costs.items()]


def _multiplies(graph: Graph, node: Node) -> bool:
    """Whether an operator costs time without weights: attention, or a product of two values."""
    return operator_named(node.op).flops is not None and not any(
        n in graph.state for n in refs(node)
    )


def _cost(graph: Graph, node: Node) -> float:
    """A number in proportion to its operations: the size of its result times what each place reads."""
    if _multiplies(graph, node):
        from weft.graph.costs import forward_flops  # imports torch

        return forward_flops(node, graph.values, graph.state) / 2
    kernels = [prod(graph.state[n].shape[1:]) for n in refs(node) if n in graph.state]
    value: Value = graph.values[node.name]
    return float(prod(value.shape) * max(kernels, default=1))


def _computed(heavy: Sequence[tuple[str, float]], rows: Mapping[str, Range]) -> float:
    return sum(((rows[n][1] - rows[n][0]) * share for n, share in heavy if n in rows), start=0.0)
