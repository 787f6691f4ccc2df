"""What a module takes and returns: trees of tensors on the user's side, named tensors everywhere else.

    args, kwargs = call_of({"tokens": tokens, "mask": mask})     # ((), {"tokens": ..., "mask": ...})
    signature.named({"tokens": tokens, "mask": mask})            # {"tokens": ..., "mask": ...} of the graph
    signature.rebuilt({"linear_2": y})                           # what the module's forward would return

A sample is a tensor, a tuple of tensors (positional inputs) or a dict (inputs by keyword). Devices only see
the graph's named tensors. The classes in a tree (a dataclass, a ModelOutput) stay in the process that has the
user's code, so nothing that is received is ever imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from weft.errors import InputError
from weft.graph.network import Graph

Sample = Tensor | Sequence[Any] | Mapping[str, Any]  # the inputs of one call; or its targets


@dataclass(frozen=True)
class Constant:
    """A leaf of an output that is no tensor: None, or a number that does not depend on the input."""

    value: Any


@dataclass(frozen=True)
class Signature:
    """The trees of one captured module, with the graph's name of every tensor in them."""

    label: str
    takes: pytree.TreeSpec  # of (args, kwargs)
    inputs: tuple[str, ...]  # the name of every leaf of `takes`
    returns: pytree.TreeSpec
    outputs: tuple[str | Constant, ...]  # every leaf of `returns`

    def named(self, sample: Sample) -> dict[str, Tensor]:
        """The tensors of a sample by the graph's input names. Raises InputError if its form is another."""
        args, kwargs = call_of(sample)
        expected = list(self.takes.child(1).context)
        missing = [name for name in expected if name not in kwargs]
        unknown = [name for name in kwargs if name not in expected]
        if missing or unknown:
            says = [f"no {', '.join(missing)}"] if missing else []
            says += [f"{', '.join(unknown)}, which the example does not have"] if unknown else []
            raise InputError(
                f"a sample of {self.label} has {' and '.join(says)}; give it as {self.form}"
            )
        leaves, spec = pytree.tree_flatten((args, {name: kwargs[name] for name in expected}))
        if spec != self.takes:
            raise InputError(
                f"a sample of {self.label} is {described(sample)}; give it as {self.form}"
            )
        _check_tensors(leaves, f"a sample of {self.label}")
        return dict(zip(self.inputs, leaves, strict=True))

    def rebuilt(self, tensors: Mapping[str, Tensor]) -> Any:
        """What the module returns, from its output tensors by name. A tensor that is absent is None."""
        leaves = [
            leaf.value if isinstance(leaf, Constant) else tensors.get(leaf) for leaf in self.outputs
        ]
        return pytree.tree_unflatten(leaves, self.returns)

    @property
    def one_tensor(self) -> bool:
        """Whether the module returns a tensor, and not a tree of tensors."""
        return self.returns.is_leaf()

    @property
    def form(self) -> str:
        """The form of a sample, in words."""
        keywords = list(self.takes.child(1).context)
        if keywords:
            return f"a dict with {', '.join(keywords)}"
        count = self.takes.child(0).num_children
        return "one tensor" if count == 1 else f"a tuple of {count} inputs"


def plain_signature(graph: Graph) -> Signature:
    """The signature of a graph whose module is not known: positional inputs, one tensor or a tuple."""
    takes = pytree.tree_structure((tuple(graph.inputs), {}))
    names = graph.outputs
    returns = pytree.tree_structure(names[0] if len(names) == 1 else tuple(names))
    return Signature(graph.name, takes, tuple(graph.inputs), returns, tuple(names))


def call_of(sample: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments and keyword arguments of the call `module(*args, **kwargs)` that a sample stands for."""
    if isinstance(sample, Tensor):
        return (sample,), {}
    if isinstance(sample, Mapping):
        return (), dict(sample)
    if isinstance(sample, tuple | list):
        return tuple(sample), {}
    raise InputError(
        f"the input is a {type(sample).__name__}; give a tensor, a tuple of tensors for positional inputs, "
        "or a dict of tensors for inputs by keyword"
    )


def leaves_of(sample: Sample, what: str) -> list[Tensor]:
    """The tensors of a sample. Raises InputError unless all are tensors with equally many samples."""
    leaves = pytree.tree_leaves(call_of(sample))
    _check_tensors(leaves, what)
    return leaves


def described(sample: object) -> str:
    """The form of a value, in words."""
    if isinstance(sample, Tensor):
        return "one tensor"
    if isinstance(sample, Mapping):
        return f"a dict with {', '.join(str(key) for key in sample)}"
    if isinstance(sample, tuple | list):
        return f"a {type(sample).__name__} of {len(sample)}"
    return f"a {type(sample).__name__}"


def _check_tensors(leaves: list[Any], what: str) -> None:
    if not leaves:
        raise InputError(f"{what} has no tensor")
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise InputError(
                f"{what} holds {str(leaf)[:40]!r}, which is not a tensor; leave it out, or set it in the "
                "module"
            )
        if leaf.dim() == 0:
            raise InputError(f"{what}: a tensor has no batch dimension; dimension 0 counts samples")
    counts = {len(leaf) for leaf in leaves}
    if len(counts) > 1:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
        raise InputError(
            f"{what} has tensors with different numbers of samples (shapes {shapes}); dimension 0 of every "
            "tensor counts the samples. Keep a tensor that is the same for all samples in the module, with "
            "register_buffer"
        )


def grown(sample: Sample, samples: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call of a sample with exactly so many samples, repeated or cut."""
    if samples < 1:
        raise InputError(f"{samples} samples are not possible; there must be at least 1")

    def grow(x: Tensor) -> Tensor:
        return torch.cat([x] * -(-samples // len(x)))[:samples] if len(x) else x

    args, kwargs = pytree.tree_map(grow, call_of(sample))
    return args, kwargs
