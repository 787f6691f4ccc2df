"""Sets that are read as their authors publish them: CIFAR-100 and EMNIST Letters.

$WEFT_DATA/cifar-100-binary/train.bin, test.bin        the binary version, unpacked; or
$WEFT_DATA/cifar-100-binary.tar.gz                     as it is downloaded
$WEFT_DATA/emnist/emnist-letters-train-images-idx3-ubyte.gz, ...    four files of gzip.zip
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.dataset import Dataset
from weft.data.files import Array, data_file, data_root, expect, read_idx
from weft.errors import InputError

CIFAR100 = "the University of Toronto's page on CIFAR: the binary version of CIFAR-100"
EMNIST = "NIST's page on EMNIST: the files of gzip.zip"
SIDE = 32
RECORD = 2 + 3 * SIDE * SIDE  # coarse label, fine label, then rows of red, of green and of blue
_BROKEN = (OSError, EOFError, KeyError, zlib.error, tarfile.TarError)

Counts = tuple[int, int]  # training and test samples


def cifar100(root: Path | None, counts: Counts = (50_000, 10_000)) -> Dataset:
    """32x32 pictures of 100 classes: the fine labels."""

    def half(name: str, count: int) -> tuple[Tensor, Tensor]:
        path, data = _cifar_bytes(root, f"{name}.bin", count * RECORD)
        expect(path, f"the length of {name}.bin in bytes", len(data), count * RECORD)
        records = np.frombuffer(data, np.uint8).reshape(count, RECORD)
        pixels = np.ascontiguousarray(records[:, 2:]).reshape(count, 3, SIDE, SIDE)
        images = torch.from_numpy(pixels.astype(np.float32)).div_(255)
        return images, labels_of(path, records[:, 1], 100)

    return Dataset("cifar100", *half("train", counts[0]), *half("test", counts[1]), classes=100)


def _cifar_bytes(root: Path | None, name: str, most: int) -> tuple[Path, bytes]:
    """A file of the binary version, unpacked or in its archive; one byte more than there should be."""
    folder, archive = data_root(root), "cifar-100-binary.tar.gz"
    unpacked = f"cifar-100-binary/{name}"
    packed = folder is not None and (folder / archive).is_file()
    if not packed or (folder is not None and (folder / unpacked).is_file()):
        path = data_file(root, unpacked, CIFAR100)
        with path.open("rb") as file:
            return path, file.read(most + 1)
    path = data_file(root, archive, CIFAR100)
    try:
        with tarfile.open(path) as tar:
            member = tar.extractfile(unpacked)
            return path, b"" if member is None else member.read(most + 1)
    except _BROKEN as error:
        raise InputError(f"data file {path}: cannot be read: {error}") from error


def emnist_letters(root: Path | None, counts: Counts = (124_800, 20_800)) -> Dataset:
    """28x28 grey letters, A to Z, capital and small together: class 0 is A.

    The files have rows and columns exchanged, and number the letters from 1.
    """

    def half(part: str, count: int) -> tuple[Tensor, Tensor]:
        stem = f"emnist/emnist-letters-{part}"
        images = data_file(root, f"{stem}-images-idx3-ubyte.gz", EMNIST)
        labels = data_file(root, f"{stem}-labels-idx1-ubyte.gz", EMNIST)
        pixels = read_idx(images, (count, 28, 28)).transpose(0, 2, 1)
        numbers = read_idx(labels, (count,))
        upright = np.ascontiguousarray(pixels[:, None], dtype=np.float32)
        return torch.from_numpy(upright).div_(255), labels_of(labels, numbers, 26, first=1)

    return Dataset(
        "emnist-letters", *half("train", counts[0]), *half("test", counts[1]), classes=26
    )


def labels_of(path: Path, labels: Array, classes: int, first: int = 0) -> Tensor:
    """Labels as class numbers from 0; InputError where one is of no class."""
    if labels.min() < first or labels.max() >= first + classes:
        raise InputError(
            f"data file {path}: labels run from {labels.min()} to {labels.max()}; "
            f"{first} to {first + classes - 1} are allowed"
        )
    numbers: NDArray[np.int64] = labels.astype(np.int64) - first
    return torch.from_numpy(numbers)
