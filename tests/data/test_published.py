"""CIFAR-100 and EMNIST Letters are read as published; small files of the same form stand for them."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from weft import data
from weft.data.published import RECORD, cifar100, emnist_letters
from weft.errors import InputError


def cifar_file(path: Path, labels: list[int]) -> bytes:
    """Records of coarse label, fine label, and pixels whose value says channel, row and column."""
    channel, row, column = np.meshgrid(np.arange(3), np.arange(32), np.arange(32), indexing="ij")
    pixels = (channel * 80 + row + column % 7).astype(np.uint8).tobytes()
    content = b"".join(bytes([label // 5, label]) + pixels for label in labels)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return content


def cifar_folder(root: Path) -> Path:
    folder = root / "cifar-100-binary"
    cifar_file(folder / "train.bin", [0, 99, 42])
    cifar_file(folder / "test.bin", [7, 8])
    return folder


def test_cifar100_has_its_fine_labels_and_its_channels_in_order(tmp_path: Path) -> None:
    cifar_folder(tmp_path)
    found = cifar100(tmp_path, counts=(3, 2))
    assert found.train_y.tolist() == [0, 99, 42]
    assert found.test_y.tolist() == [7, 8]
    assert found.classes == 100
    assert found.train_x.shape == (3, 3, 32, 32)
    assert found.train_x.dtype == torch.float32
    # blue, row 5, column 8
    assert found.train_x[1, 2, 5, 8].item() == pytest.approx((2 * 80 + 5 + 1) / 255)


def test_cifar100_is_read_from_its_archive_as_well(tmp_path: Path) -> None:
    folder = cifar_folder(tmp_path / "unpacked")
    with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as tar:
        tar.add(folder, "cifar-100-binary")
    packed = cifar100(tmp_path, counts=(3, 2))
    plain = cifar100(tmp_path / "unpacked", counts=(3, 2))
    assert torch.equal(packed.train_x, plain.train_x)
    assert torch.equal(packed.test_y, plain.test_y)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_cifar100_file_of_another_length_is_refused(tmp_path: Path, change: int) -> None:
    folder = cifar_folder(tmp_path)
    content = (folder / "train.bin").read_bytes()
    (folder / "train.bin").write_bytes(content[:change] if change < 0 else content + b"x")
    with pytest.raises(InputError, match=rf"train.bin.*expected {3 * RECORD}"):
        cifar100(tmp_path, counts=(3, 2))


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"cifar-100-binary.tar.gz.*cannot be read"):
        cifar100(tmp_path, counts=(3, 2))


def idx(path: Path, array: np.ndarray) -> None:  # type: ignore[type-arg]
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def emnist_folder(root: Path, labels: list[int]) -> None:
    for part, numbers in (("train", labels), ("test", [1])):
        images = np.zeros((len(numbers), 28, 28))
        images[:, 3, 20] = 255  # as published: column 3, row 20
        stem = root / "emnist" / f"emnist-letters-{part}"
        idx(stem.with_name(stem.name + "-images-idx3-ubyte.gz"), images)
        idx(stem.with_name(stem.name + "-labels-idx1-ubyte.gz"), np.array(numbers))


def test_emnist_letters_stand_upright_and_are_numbered_from_0(tmp_path: Path) -> None:
    emnist_folder(tmp_path, [1, 26, 13])
    found = emnist_letters(tmp_path, counts=(3, 1))
    assert found.train_y.tolist() == [0, 25, 12]
    assert found.test_y.tolist() == [0]
    assert found.classes == 26
    assert found.train_x.shape == (3, 1, 28, 28)
    assert found.train_x[0, 0, 20, 3] == 1.0
    assert found.train_x[0, 0, 3, 20] == 0.0


def test_a_letter_of_no_class_is_refused(tmp_path: Path) -> None:
    emnist_folder(tmp_path, [0, 26, 13])
    with pytest.raises(InputError, match="labels run from 0 to 26; 1 to 26 are allowed"):
        emnist_letters(tmp_path, counts=(3, 1))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cifar100", "cifar-100-binary/train.bin"),
        ("emnist-letters", "emnist/emnist-letters-train-images-idx3-ubyte.gz"),
    ],
)
def test_where_a_set_is_not_there_its_file_is_named(name: str, file: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"data file not found: .*{file}.*WEFT_DATA"):
        data.load(name, tmp_path)


def test_by_name_the_whole_set_is_expected(tmp_path: Path) -> None:
    cifar_folder(tmp_path)
    with pytest.raises(InputError, match=f"expected {50_000 * RECORD}"):
        data.load("cifar100", tmp_path)
