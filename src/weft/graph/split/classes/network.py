"""A network as shared layers and one structure per class, so that peers may hold different classes.

    net = decouple(dense, scores, last=6, keep=0.1)     # weft.graph.split.classes.decouple
    part = net.sub_model([2, 3, 4])                     # computes the logits of these classes only
    whole = compose(net.blueprint, part.shared_state(), structures)

A *structure* is a class's own channels in the last layers, with their batch norms, and its logit. Its first
layer reads all shared channels, the later ones only its own. As data it is a dictionary of tensors, under
the dense network's names, whose first dimension counts the structure's channels. In a network the
structures of equal shape are one *bank*: joined along that dimension, run as grouped convolutions.

The module runs its graph (`subnet.py`), which is also what a node gets: there is nothing to capture.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.execute import Runner
from weft.graph.network import Graph
from weft.graph.operators.table import operator_named
from weft.graph.split.classes import subnet
from weft.graph.split.classes.reading import Reading

State = dict[str, Tensor]  # a structure, or the shared layers: tensors by name


@dataclass(frozen=True)
class Blueprint:
    """All that is needed, besides weights, to build the network for any set of classes."""

    reading: Reading
    chosen: Mapping[int, tuple[Tensor, ...]]  # by class: its channels of each space
    fixed: Mapping[str, Tensor]  # numbers that nobody trains, under the dense network's names

    def counts(self, label: int) -> tuple[int, ...]:
        """How many channels of each space a class has."""
        return tuple(len(channels) for channels in self.chosen[label])

    def __deepcopy__(self, memo: object) -> Blueprint:
        return self  # nothing in it changes


def fill(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copies the tensors into a module in place, so that an optimizer goes on with them."""
    own = module.state_dict()
    if own.keys() != state.keys():
        odd = sorted(own.keys() ^ state.keys())
        raise InputError(f"the tensors do not fit the network: {', '.join(odd)} on one side only")
    for name, tensor in own.items():
        if tensor.shape != state[name].shape:
            raise InputError(
                f"tensor {name} has shape {tuple(state[name].shape)}; {tuple(tensor.shape)} is needed"
            )
        tensor.detach().copy_(state[name])


class Tensors(nn.Module):
    """Weights and statistics under the names that the dense network gives them, dots included."""

    def __init__(
        self, tensors: Mapping[str, Tensor], graph: Graph, prefix: str, *, kept: bool = True
    ) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            *path, leaf = name.split(".")
            owner: nn.Module = self
            for step in path:
                if step not in owner._modules:
                    owner.add_module(step, nn.Module())
                owner = owner.get_submodule(step)
            if graph.state[prefix + name].trainable:
                owner.register_parameter(leaf, nn.Parameter(tensor.detach().clone()))
            else:
                owner.register_buffer(leaf, tensor.detach().clone(), persistent=kept)


class Bank(Tensors):
    """The structures of several classes, all of the same shape, joined for one grouped computation."""

    def __init__(
        self, structures: Sequence[Mapping[str, Tensor]], graph: Graph, prefix: str
    ) -> None:
        joined = {
            key: torch.cat([structure[key].detach() for structure in structures])
            for key in structures[0]
        }
        super().__init__(joined, graph, prefix)
        self.count = len(structures)

    def structure(self, index: int) -> State:
        """The tensors of one class: copies."""
        return {
            key: tensor.detach().chunk(self.count)[index].clone()
            for key, tensor in self.state_dict().items()
        }

    def put(self, index: int, structure: Mapping[str, Tensor]) -> None:
        """Overwrites one class's tensors in place, so that an optimizer goes on with them."""
        for key, tensor in self.state_dict().items():
            tensor.detach().chunk(self.count)[index].copy_(structure[key])


class DecoupledNet(nn.Module):
    """Shared layers and the structures of `classes`; column i of its output is for classes[i]."""

    def __init__(
        self,
        blueprint: Blueprint,
        shared: Mapping[str, Tensor],
        structures: Mapping[int, Mapping[str, Tensor]],
    ) -> None:
        super().__init__()
        if not structures:
            raise InputError("a decoupled network needs the structure of at least one class")
        self.blueprint = blueprint
        self.classes = tuple(structures)
        alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for label in structures:
            alike[blueprint.counts(label)].append(label)
        self.bank_classes = tuple(map(tuple, alike.values()))
        sizes = [subnet.Bank(len(labels), counts) for counts, labels in alike.items()]
        self.graph = subnet.class_graph(blueprint.reading, sizes)
        self.shared = Tensors(shared, self.graph, "shared.")
        self.banks = nn.ModuleList(
            Bank([structures[label] for label in labels], self.graph, f"banks.{number}.")
            for number, labels in enumerate(self.bank_classes)
        )
        self.fixed = Tensors(self._fixed(), self.graph, "fixed.", kept=False)
        self._place = {
            label: (b, i)
            for b, labels in enumerate(self.bank_classes)
            for i, label in enumerate(labels)
        }
        nodes = [node for layer in self.graph.layers for node in layer.nodes]
        self._draws = any(operator_named(node.op).random for node in nodes)
        self._minibatch = 0
        self._compiled: tuple[list[Tensor], Runner] | None = None

    def _fixed(self) -> State:
        """Numbers that nobody trains: which channels of shared values each class reads, and the order."""
        reading, fixed = self.blueprint.reading, dict(self.blueprint.fixed)
        for number, labels in enumerate(self.bank_classes):
            for value in reading.picked:
                spaces = reading.seen[value].spaces
                rows = [rows_of(reading, self.blueprint.chosen[label], spaces) for label in labels]
                fixed[subnet.pick_name(number, value).removeprefix("fixed.")] = torch.cat(rows)
        if len(self.bank_classes) > 1:
            columns = [label for labels in self.bank_classes for label in labels]
            order = torch.tensor([columns.index(label) for label in self.classes])
            fixed[subnet.ORDER.removeprefix("fixed.")] = order
        return fixed

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self._draws):
            return self._run(x)
        self._minibatch += 1  # dropout draws anew for each minibatch, whoever else draws meanwhile
        with torch.random.fork_rng(devices=[]):
            return self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        graph = self.graph
        values = self._runner().forward(
            {graph.inputs[0]: x}, training=self.training, seed=self._minibatch
        )
        return values[graph.output]

    def _runner(self) -> Runner:
        """The compiled graph; made anew when `double()` and the like have put other tensors in place."""
        state = self.tensors()
        now = list(state.values())
        if self._compiled is None or any(
            a is not b for a, b in zip(self._compiled[0], now, strict=True)
        ):
            segment = self.graph.segment(0, len(self.graph.layers) - 1)
            self._compiled = (now, Runner(segment, state))
        return self._compiled[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}  # a copy has tensors of its own

    @property
    def description(self) -> str:
        """What this network is, beside the one that it was made of."""
        reading = self.blueprint.reading
        own = sum(p.numel() for p in self.parameters())
        return (
            f"{reading.graph.name}, decoupled: structures of {len(self.classes)} classes in "
            f"{', '.join(reading.layers)}, all other layers shared; {own:,} parameters, where "
            f"{reading.graph.name} has {reading.graph.parameters:,}"
        )

    def tensors(self) -> State:
        """All tensors under the names of the graph."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def shared_state(self) -> State:
        return {name: t.detach().clone() for name, t in self.shared.state_dict().items()}

    def put_shared(self, state: Mapping[str, Tensor]) -> None:
        fill(self.shared, state)

    def structure(self, label: int) -> State:
        bank, index = self._at(label)
        return bank.structure(index)

    def structures(self) -> dict[int, State]:
        return {label: self.structure(label) for label in self.classes}

    def put_structure(self, label: int, state: Mapping[str, Tensor]) -> None:
        bank, index = self._at(label)
        bank.put(index, state)

    def _at(self, label: int) -> tuple[Bank, int]:
        if label not in self._place:
            raise InputError(
                f"class {label} has no structure here; there are: {', '.join(map(str, self.classes))}"
            )
        number, index = self._place[label]
        bank = self.banks[number]
        assert isinstance(bank, Bank)
        return bank, index

    def sub_model(self, classes: Iterable[int]) -> DecoupledNet:
        """A new network with copies of the shared layers and of these classes' structures."""
        wanted = list(classes)
        if len(set(wanted)) != len(wanted):
            raise InputError(f"classes {wanted}: each may be named once")
        parts = {label: self.structure(label) for label in wanted}
        return compose(self.blueprint, self.shared_state(), parts)

    def local_labels(self, labels: Tensor) -> Tensor:
        """Columns of this network's output for the labels of its own classes."""
        table = torch.full((int(max(*self.classes, int(labels.max()))) + 1,), -1)
        table[list(self.classes)] = torch.arange(len(self.classes))
        columns = table[labels]
        if int(columns.min()) < 0:
            foreign = sorted(set(labels[columns < 0].tolist()))
            raise InputError(
                f"samples of classes {foreign} at a peer that holds {list(self.classes)}: "
                "give it only samples of its own classes"
            )
        return columns


def rows_of(reading: Reading, chosen: Sequence[Tensor], spaces: Sequence[int]) -> Tensor:
    """Places of a class's channels in a row of several spaces."""
    parts, before = [], 0
    for space in spaces:
        parts.append(chosen[space] + before)
        before += reading.widths[space]
    return torch.cat(parts)


def compose(
    blueprint: Blueprint,
    shared: Mapping[str, Tensor],
    structures: Mapping[int, Mapping[str, Tensor]],
) -> DecoupledNet:
    """Puts a network together from its parts; its columns are in the order of `structures`."""
    return DecoupledNet(blueprint, shared, structures)
