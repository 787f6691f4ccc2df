"""The graph of a decoupled network for some of its classes: plain data, as `capture` would give it.

    graph = class_graph(reading, [Bank(5, reading.counts([10, 10, 10]))])     # five classes of equal size

Classes of equal size are one *bank*: their channels lie in a row, class by class, and run as grouped
convolutions. What reads shared channels is an ordinary convolution, since all classes read the same ones.
Vectors are maps of one row and one column here, so that a dense layer is a convolution as well.

Names: `shared.NAME` for tensors that all classes share, `banks.0.NAME` for those of the classes of bank 0,
`fixed.NAME` for numbers that nobody trains: counters, and which channels of a shared value a class reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.graph.costs import forward_flops, kept_values, saved_bytes
from weft.graph.network import Arg, Atom, Batch, Graph, Layer, Node, Ref, State, Value, refs
from weft.graph.operators.calls import (
    CONVOLUTION,
    alias,
    flattened,
    joined,
    map_mean,
    picked,
    reshaped,
)
from weft.graph.operators.rows import argument
from weft.graph.operators.table import operator_named
from weft.graph.split.classes.reading import Mixer, Reading, Rule, Seen

ORDER = "fixed.order"  # which column of the banks' outputs, one after the other, is whose


@dataclass(frozen=True)
class Bank:
    """Some classes that keep equally many channels of each space."""

    classes: int
    counts: tuple[int, ...]

    def channels(self, spaces: Sequence[int]) -> int:
        """Channels that all its classes have together."""
        return self.classes * self.per_class(spaces)

    def per_class(self, spaces: Sequence[int]) -> int:
        return sum(self.counts[space] for space in spaces)


def class_graph(reading: Reading, banks: Sequence[Bank]) -> Graph:
    """The network for the classes of some banks; its columns are the banks' one after the other, or as
    the tensor ORDER says where there are several banks."""
    return _SubnetWriter(reading, banks).write()


def fixed_name(reading: Reading, name: str) -> str:
    """What a tensor of the dense network that all classes share is called in the decoupled one."""
    floating = reading.graph.state[name].dtype.startswith("float")
    return f"shared.{name}" if floating else f"fixed.{name}"


def pick_name(bank: int, value: str) -> str:
    """The tensor that says which channels of a shared value the classes of a bank read."""
    return f"fixed.pick{bank}_{value}"


def part_shape(rule: Rule, shape: tuple[int, ...], bank: Bank) -> tuple[int, ...]:
    """A tensor's shape in a bank, from its shape in the dense network."""
    _, *rest = rule.seen_as or shape
    if rule.columns:
        rest[0] = bank.per_class(rule.columns)
    return (bank.channels(rule.rows), *rest)


class _SubnetWriter:
    def __init__(self, reading: Reading, banks: Sequence[Bank]) -> None:
        self.reading, self.banks = reading, banks
        self.dense = reading.graph
        self.values: dict[str, Value] = {n: self.dense.values[n] for n in self.dense.inputs}
        self.state: dict[str, State] = {}
        for name in reading.shared_state:
            self.state[fixed_name(reading, name)] = self.dense.state[name]
        self.nodes: list[Node] = []

    def write(self) -> Graph:
        bodies: list[list[Node]] = []
        for layer in self.dense.layers:
            self.nodes = []
            for node in layer.nodes:
                if operator_named(node.op).training_only:
                    continue
                if node.name in self.reading.kinds:
                    for number, bank in enumerate(self.banks):
                        _BankWriter(self, number, bank).node(node)
                else:
                    self._shared(node)
            bodies.append(self.nodes)
        self.nodes = bodies[-1]
        output = self._columns()
        kept = kept_values([node for body in bodies for node in body]) | {output}
        layers = [
            self._layer(layer.name, body, kept)
            for layer, body in zip(self.dense.layers, bodies, strict=True)
        ]
        return Graph(self.dense.name, self.dense.inputs, output, layers, self.values, self.state)

    def add(self, node: Node, shape: Sequence[int], dtype: str) -> None:
        self.nodes.append(node)
        self.values[node.name] = Value(tuple(shape), dtype)

    def _shared(self, node: Node) -> None:
        def atom(a: Atom) -> Atom:
            known = isinstance(a, Ref) and a.name in self.dense.state
            return Ref(fixed_name(self.reading, a.name)) if known and isinstance(a, Ref) else a

        self.nodes.append(mapped(node, node.name, atom))
        if node.name in self.dense.values:
            self.values[node.name] = self.dense.values[node.name]

    def _columns(self) -> str:
        """The logits of all banks, in the order of the network's classes."""
        value = self.dense.values[self.dense.output]
        names = []
        for number, bank in enumerate(self.banks):
            name = f"logits@{number}"
            names.append(name)
            self.add(
                flattened(name, own_name(self.dense.output, number)), (1, bank.classes), value.dtype
            )
        if len(names) == 1:
            return names[0]
        total = sum(bank.classes for bank in self.banks)
        self.add(joined("logits@all", [Ref(name) for name in names], 1), (1, total), value.dtype)
        self.state[ORDER] = State((total,), "int64", trainable=False)
        self.add(picked("logits", "logits@all", ORDER), (1, total), value.dtype)
        return "logits"

    def _layer(self, name: str, nodes: list[Node], kept: frozenset[str]) -> Layer:
        read = dict.fromkeys(n for node in nodes for n in refs(node) if n in self.state)
        return Layer(
            name, nodes, list(read),
            sum(forward_flops(node, self.values, self.state) for node in nodes),
            sum(saved_bytes(node, self.values, kept) for node in nodes),
        )  # fmt: skip


class _BankWriter:
    """Writes decoupled nodes for the classes of one bank."""

    def __init__(self, writer: _SubnetWriter, number: int, bank: Bank) -> None:
        self.writer, self.number, self.bank = writer, number, bank
        self.reading = writer.reading

    def node(self, node: Node) -> None:
        name, dtype = own_name(node.name, self.number), self.reading.graph.values[node.name].dtype
        seen, kind = self.reading.seen[node.name], self.reading.kinds[node.name]
        shape = self._shape(seen)
        match kind:
            case "mix":
                mixer = next(m for m in self.reading.mixers if m.node.name == node.name)
                self._mix(mixer, name, shape, dtype)
            case "keep":
                self._keep(node, name, shape, dtype)
            case "mean":
                self.writer.add(map_mean(name, self._read(node.args[0])), shape, dtype)
            case "flat":
                self.writer.add(alias(name, self._read(node.args[0])), shape, dtype)
            case "join":
                self._join(node, name, seen, dtype)

    def _shape(self, seen: Seen) -> tuple[int, ...]:
        return (1, self.bank.channels(seen.spaces), *seen.side)

    def _mix(self, mixer: Mixer, name: str, shape: tuple[int, ...], dtype: str) -> None:
        node, own = mixer.node, mixer.source in self.reading.kinds
        weight = self._state(mixer.weight)
        bias = self._state(mixer.bias) if mixer.bias else self._new_bias(mixer)
        groups = self.bank.classes if own else 1
        if node.op == CONVOLUTION:
            window: list[Arg] = [
                argument(node, 3, "stride", [1, 1]),
                argument(node, 4, "padding", [0, 0]),
                argument(node, 5, "dilation", [1, 1]),
            ]
        else:  # a dense layer reads the whole map at once
            window = [[1, 1], [0, 0], [1, 1]]
        source = Ref(own_name(mixer.source, self.number) if own else mixer.source)
        if own or node.op == CONVOLUTION:
            args: list[Arg] = [source, weight, bias, *window, groups]
            self.writer.add(Node(name, CONVOLUTION, args), shape, dtype)
            return
        flat = Node(f"{name}_flat", node.op, [source, weight, bias])
        self.writer.add(flat, shape[:2], dtype)
        self._as_map(name, flat.name, shape, dtype)

    def _as_map(self, name: str, source: str, shape: tuple[int, ...], dtype: str) -> None:
        sizes: list[Atom] = [Batch(1), *shape[1:]]
        self.writer.add(reshaped(name, source, sizes), shape, dtype)

    def _keep(self, node: Node, name: str, shape: tuple[int, ...], dtype: str) -> None:
        def atom(a: Atom) -> Atom:
            if not isinstance(a, Ref):
                return a
            if a.name in self.reading.graph.state:
                return self._state(a.name)
            return self._read(a)

        copy = mapped(node, name, atom)
        if node.op == CONVOLUTION:  # depthwise: as many groups as channels
            defaults: list[Arg] = [None, None, None, [1, 1], [0, 0], [1, 1], 1]
            args = [*copy.args, *defaults[len(copy.args) :]]
            args[6] = shape[1]
            copy = Node(name, node.op, args)
        self.writer.add(copy, shape, dtype)

    def _join(self, node: Node, name: str, seen: Seen, dtype: str) -> None:
        """Class by class: what one class has of all parts lies together."""
        parts = node.args[0]
        assert isinstance(parts, list)
        split: list[str] = []
        for place, part in enumerate(parts):
            read = self._read(part)
            assert isinstance(part, Ref)
            assert isinstance(read, Ref)
            per_class = self.bank.per_class(self.reading.seen[part.name].spaces)
            sizes: list[Atom] = [Batch(1), self.bank.classes, per_class, *seen.side]
            made = f"{name}_{place}"
            shape = (1, self.bank.classes, per_class, *seen.side)
            self.writer.add(reshaped(made, read.name, sizes), shape, dtype)
            split.append(made)
        row = f"{name}_joined"
        whole = (1, self.bank.classes, self.bank.per_class(seen.spaces), *seen.side)
        self.writer.add(joined(row, [Ref(name) for name in split], 2), whole, dtype)
        self._as_map(name, row, self._shape(seen), dtype)

    def _read(self, arg: Arg) -> Atom:
        """A value that a decoupled node reads: the bank's own, or its channels of a shared one."""
        assert isinstance(arg, Ref)
        if arg.name in self.reading.kinds:
            return Ref(own_name(arg.name, self.number))
        if arg.name not in self.reading.picked:
            return arg
        name = own_name(arg.name, self.number)
        if name not in self.writer.values:
            self._pick(arg.name, name)
        return Ref(name)

    def _pick(self, value: str, name: str) -> None:
        seen, dtype = self.reading.seen[value], self.reading.graph.values[value].dtype
        count = self.bank.channels(seen.spaces)
        index = pick_name(self.number, value)
        self.writer.state[index] = State((count,), "int64", trainable=False)
        vector = len(self.reading.graph.values[value].shape) == 2
        first = f"{name}_flat" if vector else name
        shape = self._shape(seen)
        self.writer.add(picked(first, value, index), shape[:2] if vector else shape, dtype)
        if vector:
            self._as_map(name, first, shape, dtype)

    def _state(self, name: str) -> Ref:
        dense = self.reading.graph.state[name]
        shape = part_shape(self.reading.rules[name], dense.shape, self.bank)
        own = f"banks.{self.number}.{name}"
        self.writer.state[own] = State(shape, dense.dtype, dense.trainable)
        return Ref(own)

    def _new_bias(self, mixer: Mixer) -> Ref | None:
        """The layer of the logits always has a bias: calibration needs one."""
        if mixer != self.reading.head:
            return None
        own = f"banks.{self.number}.{self.reading.head_bias}"
        dtype = self.reading.graph.state[mixer.weight].dtype
        self.writer.state[own] = State((self.bank.classes,), dtype)
        return Ref(own)


def own_name(value: str, bank: int) -> str:
    """What a decoupled value is called in the graph of a bank."""
    return f"{value}@{bank}"


def mapped(node: Node, name: str, atom: object) -> Node:
    """The same call under another name, with other operands."""
    assert callable(atom)
    args: list[Arg] = [[atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args]
    return Node(name, node.op, args, node.kwargs)
