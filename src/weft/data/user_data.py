"""The user's data: what `weft.train` takes as data, and `file.py:function` in place of a set's name.

    data = named_data("mnist5k")               # the name itself, if a set has that name
    data = named_data("mine.py:digits")        # what the function returns

The function takes nothing and returns data: a Dataset, a pair of samples and targets (tensors, NumPy arrays,
or tuples or dicts of them), a torch Dataset or DataLoader, or a generator of minibatches. Or it takes the
number of a minibatch and returns the pair of that minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from weft.data import Dataset, load
from weft.data.indexed import Indexed
from weft.data.streams import Pair, Stream, is_stream, pair_of, takes_a_number
from weft.data.trees import as_tensors
from weft.errors import InputError
from weft.user_files import as_input_error, attribute, file_and_name

# A name, all samples, samples by number, minibatches by number, or minibatches one after the other.
Opened = str | Dataset | Pair | Mapping[str, Pair] | Indexed | Stream | Callable[[int], Pair]
Data = Opened | TorchDataset[Any] | Iterable[Any] | Callable[[], Iterable[Any]]
WHAT = "data file"


def named_data(text: str, seed: int = 0) -> Opened:
    """The data that a user names. Raises InputError if there is none of that name or form."""
    place = file_and_name(text)
    if place is None:
        load(text)  # refuses an unknown name
        return text
    path, name = place
    function_or_data = attribute(path, name, WHAT)
    data = function_or_data
    if callable(data) and not takes_a_number(data) and not is_stream(data):
        with as_input_error(f"{WHAT} {path}"):
            data = function_or_data()
    try:
        return opened(data, seed)
    except InputError as error:
        raise InputError(f"--data {text}: {error}") from None


def opened(data: Data, seed: int = 0) -> Opened:
    """The user's data as a run reads it. InputError if it has no form that a run can read."""
    if isinstance(data, str | Dataset | Stream | Indexed):
        return data
    if is_stream(data):
        return Stream(data, seed=seed)  # type: ignore[arg-type]
    if isinstance(data, tuple) and len(data) == 2:
        return as_tensors(data[0]), as_tensors(data[1])
    if isinstance(data, Mapping):
        return {name: (as_tensors(x), as_tensors(y)) for name, (x, y) in data.items()}
    if callable(data):
        minibatch: Any = data
        return lambda step: pair_of(minibatch(step))
    if not isinstance(data, tuple) and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Indexed(data)
    raise InputError(
        f"data is a {type(data).__name__}; give a set's name, a weft.data.Dataset, a pair of tensors or "
        "arrays (samples and targets), a torch Dataset or DataLoader, a generator of minibatches, a pair for "
        "each device with data, or a function that returns the pair of minibatch n"
    )


def own_batch(data: Opened) -> int | None:
    """How many samples the data's own minibatches have; None where the run decides it."""
    return data.batch if isinstance(data, Stream) else None


def close(data: Opened) -> None:
    """Ends the worker processes of a loader."""
    if isinstance(data, Stream):
        data.close()


def sample_shape(data: Opened) -> tuple[int, ...] | None:
    """The shape of one sample; None if a sample has several tensors."""
    if isinstance(data, str):
        return tuple(load(data).train_x.shape[1:])
    if isinstance(data, Dataset):
        return tuple(data.train_x.shape[1:])
    if isinstance(data, Mapping):
        x, _ = next(iter(data.values()))
    elif isinstance(data, Indexed):
        x, _ = data.rows([0])
    else:
        x, _ = data(0) if callable(data) else data
    return tuple(x.shape[1:]) if isinstance(x, Tensor) else None


def class_count(data: Opened) -> int | None:
    """The number of classes of a data set; None for the user's own tensors or function."""
    if isinstance(data, str):
        return load(data).classes
    return data.classes if isinstance(data, Dataset) else None
