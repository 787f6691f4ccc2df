"""The user's data: what `weft.train` takes as data, and `file.py:function` in place of a set's name.

    data = named_data("mnist5k")               # the name itself, if a set has that name
    data = named_data("mine.py:digits")        # what the function returns

The function takes nothing and returns a Dataset or a pair of samples and targets (tensors, or tuples or dicts
of tensors); or it takes the number of a minibatch and returns the pair of that minibatch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from weft.data import Dataset, load
from weft.data.trees import Tree, tensors_of
from weft.errors import InputError
from weft.user_files import as_input_error, attribute, file_and_name

Pair = tuple[Tree, Tree]  # samples and their targets
Data = str | Dataset | Pair | Callable[[int], Pair]
WHAT = "data file"


def named_data(text: str) -> Data:
    """The data that a user names. Raises InputError if there is none of that name or form."""
    place = file_and_name(text)
    if place is None:
        load(text)  # refuses an unknown name
        return text
    path, name = place
    function_or_data = attribute(path, name, WHAT)
    if not callable(function_or_data):
        return _checked(function_or_data, text)
    if _takes_a_number(function_or_data):
        minibatch: Callable[[int], Pair] = function_or_data
        return minibatch
    with as_input_error(f"{WHAT} {path}"):
        data = function_or_data()
    return _checked(data, text)


def sample_shape(data: Data) -> tuple[int, ...] | None:
    """The shape of one sample; None if a sample has several tensors."""
    if isinstance(data, str):
        return tuple(load(data).train_x.shape[1:])
    if isinstance(data, Dataset):
        return tuple(data.train_x.shape[1:])
    x, _ = data(0) if callable(data) else data
    return tuple(x.shape[1:]) if isinstance(x, Tensor) else None


def class_count(data: Data) -> int | None:
    """The number of classes of a data set; None for the user's own tensors or function."""
    if isinstance(data, str):
        return load(data).classes
    return data.classes if isinstance(data, Dataset) else None


def _takes_a_number(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.default is p.empty and p.kind != p.VAR_KEYWORD and p.kind != p.VAR_POSITIONAL
               for p in parameters)  # fmt: skip


def _of_tensors(pair: tuple[Any, Any]) -> bool:
    try:
        return all(tensors_of(part) for part in pair)
    except TypeError:
        return False


def _checked(data: object, text: str) -> Dataset | Pair:
    if isinstance(data, Dataset):
        return data
    if isinstance(data, tuple) and len(data) == 2 and _of_tensors(data):
        return data
    raise InputError(
        f"--data {text} gave a {type(data).__name__}; it must give a weft.data.Dataset, a pair of "
        "tensors (samples and targets), or be a function of the minibatch's number that returns such a pair"
    )
