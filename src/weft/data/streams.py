"""Minibatches that come one after the other: a torch DataLoader, a generator, any iterable.

    stream = Stream(DataLoader(samples, batch_size=32, shuffle=True), seed=7)
    stream(0)                # samples and targets of minibatch 0
    stream.forget(20)        # minibatches before 20 will not be asked for again

Each minibatch is read once, in the order of the loader, and kept until `forget`: a run that goes back after
the loss of a device gets the same samples again. At the end of a pass the iterable is read again from its
beginning; an iterator has one pass. All numbers that torch draws while a minibatch is read (shuffling,
augmentation) come from a generator of the stream's own, so they depend on the seed alone.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from weft.data.trees import Tree, as_tensors, count_of, tensors_of
from weft.errors import InputError
from weft.user_files import as_input_error

Pair = tuple[Tree, Tree]  # samples and their targets
TARGETS = ("labels", "label", "targets", "target")  # a dict's key for the targets
KEPT_BYTES = 256 << 20  # how much is kept to be repeated


class Stream:
    """The minibatches of an iterable by their numbers. `batch` is how many samples each has."""

    def __init__(self, data: Iterable[Any] | Callable[[], Iterable[Any]], *, seed: int = 0) -> None:
        self._passes = _passes(data)
        self._iterator: Iterator[Any] | None = None
        self._random = torch.Generator().manual_seed(seed).get_state()
        self._kept: dict[int, Pair] = {}
        self._read = 0  # minibatches read so far
        self._whole = 0  # whole ones in the pass that is being read
        self.left_out = 0  # samples of incomplete minibatches
        self.batch = 0
        self.batch = count_of(self(0)[0])

    def __call__(self, step: int) -> Pair:
        """Minibatch `step`. InputError if the data has ended, or if the minibatch is no longer kept."""
        while step >= self._read:
            self._kept[self._read] = self._next()
            self._read += 1
            self._stay_small()
        if step not in self._kept:
            raise InputError(
                f"minibatch {step} has to be repeated, and the data is read only once: of the {self._read} "
                f"minibatches read, only {min(self._kept)} and later ones are kept (at most "
                f"{KEPT_BYTES >> 20} MiB). "
                "Give data whose samples can be read by number (a torch Dataset, tensors, or a function of "
                "the minibatch's number)"
            )
        return self._kept[step]

    def forget(self, step: int) -> None:
        """Minibatches before `step` will not be asked for again."""
        self._kept = {n: pair for n, pair in self._kept.items() if n >= step or n == self._read - 1}

    def close(self) -> None:
        """Ends the loader's worker processes."""
        self._iterator = None

    def _stay_small(self) -> None:
        sizes = {n: _bytes(pair) for n, pair in self._kept.items()}
        total = sum(sizes.values())
        for n in sorted(sizes)[:-1]:
            if total <= KEPT_BYTES:
                return
            total -= sizes[n]
            del self._kept[n]

    def _next(self) -> Pair:
        while True:
            item = self._item()
            if item is None:
                self._begin_again()
                continue
            pair = pair_of(item)
            samples = count_of(pair[0])
            if samples == self.batch or not self.batch:
                self._whole += 1
                return pair
            if samples > self.batch or self._item() is not None:
                raise InputError(
                    f"minibatch {self._read} of the data has {samples} samples, the first has {self.batch}; "
                    "only the last one of a pass may be smaller"
                )
            self._leave_out(samples)
            self._begin_again()

    def _item(self) -> Any:
        """What the iterable gives next; None at the end of a pass."""
        with torch.random.fork_rng(devices=[]), as_input_error("data"):
            torch.set_rng_state(self._random)
            if self._iterator is None:
                self._iterator = self._passes()
            item = next(self._iterator, None)
            self._random = torch.get_rng_state()
        return item

    def _begin_again(self) -> None:
        if not self._whole:
            raise InputError(
                f"the data ended after {self._read} minibatches: an iterator can be read only once. Give "
                "data for all steps, fewer --steps, or an iterable that can be read again (a DataLoader, a "
                "list, a generator function)"
                if self._read
                else "the data has no minibatch"
            )
        self._iterator, self._whole = None, 0

    def _leave_out(self, samples: int) -> None:
        if not self.left_out:
            warnings.warn(
                f"the last minibatch of a pass has {samples} samples instead of {self.batch}; it is left "
                "out, as with drop_last=True of a DataLoader",
                stacklevel=2,
            )
        self.left_out += samples


def is_stream(data: object) -> bool:
    """Whether data is read one minibatch after the other, and not by number."""
    if isinstance(data, DataLoader | IterableDataset) or inspect.isgeneratorfunction(data):
        return not (callable(data) and takes_a_number(data))
    if isinstance(data, str | tuple | Mapping) or callable(data) or hasattr(data, "train_x"):
        return False
    return isinstance(data, list) or (isinstance(data, Iterable) and not hasattr(data, "__len__"))


def takes_a_number(function: Callable[..., Any]) -> bool:
    """Whether a function has an argument that must be given: the number of a minibatch."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.default is p.empty and p.kind != p.VAR_KEYWORD and p.kind != p.VAR_POSITIONAL
               for p in parameters)  # fmt: skip


def pair_of(item: Any) -> Pair:
    """Samples and targets of what a loader gives: of a tuple the last is the targets, of a dict `labels`."""
    if isinstance(item, Mapping):
        keys = [key for key in TARGETS if key in item]
        if len(keys) != 1 or len(item) < 2:
            raise InputError(
                f"a minibatch of the data is a dict with {', '.join(map(str, item)) or 'nothing'}; it needs "
                f"inputs and one of the keys {', '.join(TARGETS)}"
            )
        samples: Any = {key: value for key, value in item.items() if key != keys[0]}
        targets = item[keys[0]]
    elif isinstance(item, tuple | list) and len(item) >= 2:
        samples = item[0] if len(item) == 2 else tuple(item[:-1])
        targets = item[-1]
    else:
        raise InputError(
            f"a minibatch of the data is a {type(item).__name__}; give a tuple (inputs and targets) or a dict"
        )
    pair = as_tensors(samples), as_tensors(targets)
    try:
        counts = count_of(pair[0]), count_of(pair[1])
    except ValueError as error:
        raise InputError(f"a minibatch of the data has {error}") from None
    if counts[0] != counts[1]:
        raise InputError(f"a minibatch of the data has {counts[0]} samples but {counts[1]} targets")
    return pair


def _passes(data: Any) -> Callable[[], Iterator[Any]]:
    """A function that begins a pass over the data."""
    if isinstance(data, IterableDataset):
        raise InputError(
            "an IterableDataset gives single samples; give a DataLoader over it with its batch_size"
        )
    if isinstance(data, DataLoader) and data.batch_size is None and data.batch_sampler is None:
        raise InputError("the DataLoader has batch_size=None: it gives single samples; set one")
    if callable(data):
        return lambda: iter(data())
    if isinstance(data, Iterator):
        return lambda: data
    return lambda: iter(data)


def _bytes(pair: Sequence[Tree]) -> int:
    return sum(tensor.nbytes for tree in pair for tensor in tensors_of(tree))
