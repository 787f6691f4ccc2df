"""A network as shared layers and one structure per class, so that peers may hold different classes.

    net = decouple(dense, scores, last=6, keep=0.1)     # weft.graph.split.classes.decouple
    part = net.sub_model([2, 3, 4])                     # computes the logits of these classes only
    whole = compose(net.blueprint, part.shared_state(), structures)

A *structure* is a class's own filters in the last convolutions, with their batch norm, and its logit

    logit_c = w_c * (average of its last feature maps) + b_c

Its first convolution reads all shared channels, the later ones only its own. As data it is a
dictionary of tensors whose first dimension counts the structure's filters. In a network the
structures of equal shape are one *bank*: joined along that dimension, run as grouped convolutions.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.errors import InputError

State = dict[str, Tensor]  # a structure, or the shared layers: tensors by name

HEAD = "head"


@dataclass(frozen=True)
class Stage:
    """One decoupled convolution and the layers that follow it, without weights."""

    name: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    between: tuple[tuple[str, nn.Module], ...]  # pooling before the batch norm
    norm: tuple[float, float] | None  # eps and momentum of its batch norm
    after: tuple[tuple[str, nn.Module], ...]  # activation and pooling: no weights in them


@dataclass(frozen=True)
class Blueprint:
    """All that is needed, besides weights, to build the network for any set of classes."""

    shared: nn.Sequential  # its weights are not used
    stages: tuple[Stage, ...]

    def shared_layers(self) -> nn.Sequential:
        return copy.deepcopy(self.shared)


def batch_norm(channels: int, eps: float, momentum: float) -> nn.BatchNorm2d:
    """A batch norm without the counter of batches: peers average its tensors, and a mean of counters makes no
    sense."""
    norm = nn.BatchNorm2d(channels, eps=eps, momentum=momentum)
    norm.num_batches_tracked = None
    return norm


def fill(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copies the tensors into a module in place, so that an optimizer goes on with them.

    `load_state_dict` would add the counter that `batch_norm` leaves out.
    """
    tensors = module.state_dict()
    if tensors.keys() != state.keys():
        odd = sorted(tensors.keys() ^ state.keys())
        raise InputError(f"the tensors do not fit the network: {', '.join(odd)} on one side only")
    for name, tensor in tensors.items():
        if tensor.shape != state[name].shape:
            raise InputError(
                f"tensor {name} has shape {tuple(state[name].shape)}; {tuple(tensor.shape)} is needed"
            )
        tensor.detach().copy_(state[name])


class Bank(nn.Module):
    """The structures of several classes, all of the same shape, in one grouped computation."""

    def __init__(self, stages: Sequence[Stage], structures: Sequence[Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.count = len(structures)
        first = structures[0]
        children: list[tuple[str, nn.Module]] = []
        for index, stage in enumerate(stages):
            filters, inputs = first[f"{stage.name}.weight"].shape[:2]
            groups = self.count if index else 1  # the first convolution reads the shared channels
            conv = nn.Conv2d(
                inputs * groups, filters * self.count, stage.kernel, stage.stride, stage.padding,
                groups=groups, bias=f"{stage.name}.bias" in first,
            )  # fmt: skip
            children += [(stage.name, conv), *stage.between]
            if stage.norm is not None:
                children.append(
                    (f"{stage.name}_norm", batch_norm(filters * self.count, *stage.norm))
                )
            children += stage.after
        last = first[f"{stages[-1].name}.weight"].shape[0]
        self.layers = nn.Sequential()
        for name, child in children:
            self.layers.add_module(name, child)
        self.average = nn.AdaptiveAvgPool2d(1)
        # One dot product per class: a 1x1 convolution with a group for each.
        self.head = nn.Conv2d(last * self.count, self.count, 1, groups=self.count)
        fill(self, self._joined(structures))

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.head(self.average(self.layers(x))), 1)

    def _joined(self, structures: Sequence[Mapping[str, Tensor]]) -> State:
        return {
            key: torch.cat([s[_short(key)].detach() for s in structures])
            for key in self.state_dict()
        }

    def structure(self, index: int) -> State:
        """The tensors of one class: copies."""
        return {
            _short(key): tensor.detach().chunk(self.count)[index].clone()
            for key, tensor in self.state_dict().items()
        }

    def put(self, index: int, structure: Mapping[str, Tensor]) -> None:
        """Overwrites one class's tensors in place, so that an optimizer goes on with them."""
        for key, tensor in self.state_dict().items():
            tensor.detach().chunk(self.count)[index].copy_(structure[_short(key)])


def _short(key: str) -> str:
    """`layers.conv4_1.weight` of a bank is `conv4_1.weight` of a structure."""
    return key.removeprefix("layers.")


class DecoupledNet(nn.Module):
    """Shared layers and the structures of `classes`; column i of its output is for classes[i]."""

    order: Tensor

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
        self.shared = blueprint.shared_layers()
        fill(self.shared, shared)
        alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for label, structure in structures.items():
            alike[tuple((k, tuple(t.shape)) for k, t in structure.items())].append(label)
        self.bank_classes = tuple(map(tuple, alike.values()))
        self.banks = nn.ModuleList(
            Bank(blueprint.stages, [structures[label] for label in labels])
            for labels in self.bank_classes
        )
        columns = [label for labels in self.bank_classes for label in labels]
        order = torch.tensor([columns.index(label) for label in self.classes])
        self.register_buffer("order", order, persistent=False)
        self._place = {
            label: (b, i)
            for b, labels in enumerate(self.bank_classes)
            for i, label in enumerate(labels)
        }
        self.train()  # its layers may be copies from a network in evaluation mode

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.shared(x))

    def classify(self, features: Tensor) -> Tensor:
        """The logits, computed from the output of the shared layers."""
        # There is one bank per shape of structure: a single one unless classes differ in size.
        logits = [bank(features) for bank in self.banks]
        if len(logits) == 1:
            only: Tensor = logits[0]
            return only
        return torch.index_select(torch.cat(logits, 1), 1, self.order)

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


def compose(
    blueprint: Blueprint,
    shared: Mapping[str, Tensor],
    structures: Mapping[int, Mapping[str, Tensor]],
) -> DecoupledNet:
    """Puts a network together from its parts; its columns are in the order of `structures`."""
    return DecoupledNet(blueprint, shared, structures)
