"""Samples and targets as trees of tensors: a tensor, a tuple of tensors, or a dict of tensors.

    rows_of({"tokens": tokens, "mask": mask}, torch.tensor([3, 1]))     # samples 3 and 1 of every tensor

Dimension 0 of every tensor counts the samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import InputError

Tree = Tensor | Sequence[Any] | Mapping[str, Any]


def tensors_of(tree: Tree) -> list[Tensor]:
    """All tensors of a tree, in its order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        return [tensor for part in tree.values() for tensor in tensors_of(part)]
    if isinstance(tree, tuple | list):
        return [tensor for part in tree for tensor in tensors_of(part)]
    raise TypeError(f"a {type(tree).__name__} among the samples is not a tensor")


def count_of(tree: Tree) -> int:
    """How many samples a tree holds. Raises ValueError if its tensors disagree, or if there are none."""
    shapes = [tuple(tensor.shape) for tensor in tensors_of(tree)]
    counts = {shape[0] if shape else -1 for shape in shapes}
    if len(counts) != 1 or -1 in counts:
        listed = ", ".join(str(shape) for shape in shapes) or "none"
        raise ValueError(
            f"tensors of shapes {listed}; dimension 0 of every tensor must count the samples"
        )
    return counts.pop()


def mapped(function: Callable[..., Tensor], *trees: Any) -> Any:
    """A tree of the same form with the function's results. Dicts become plain dicts."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {key: mapped(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple | list):
        parts = [mapped(function, *part) for part in zip(*trees, strict=True)]
        return type(first)(parts)
    return function(*trees)


def rows_of(tree: Tree, index: Tensor | slice) -> Any:
    """Some samples of every tensor."""
    return mapped(lambda tensor: tensor[index], tree)


def joined(trees: Sequence[Tree]) -> Any:
    """The samples of several trees of one form, one after the other."""
    return mapped(lambda *tensors: torch.cat(tensors), *trees)


def as_tensors(tree: Any) -> Any:
    """A tree whose NumPy arrays are tensors on the same memory: of a memmap only the rows used are read."""
    if isinstance(tree, Tensor):
        return tree
    if isinstance(tree, Mapping):
        return {key: as_tensors(part) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(as_tensors(part) for part in tree)
    if not isinstance(tree, np.ndarray):
        raise InputError(
            f"data must be samples and targets: a {type(tree).__name__} among them is no tensor and no array"
        )
    try:
        with warnings.catch_warnings():  # nothing is written into samples, so they may be read-only
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(tree)
    except (TypeError, ValueError) as error:
        raise InputError(f"the data has an array of {tree.dtype}: {error}") from None
