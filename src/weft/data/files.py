"""Finds and reads data files. They are not trusted: sizes are checked, nothing is unpickled."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError

VARIABLE = "WEFT_DATA"
LIMIT = 1 << 30  # bytes; far above every set here, far below what would exhaust a small device
_BROKEN = (OSError, EOFError, ValueError, KeyError, zlib.error, zipfile.BadZipFile, csv.Error)

Array = NDArray[Any]


def data_root(root: Path | None) -> Path | None:
    """The folder with the papers' sets: as given, else the variable's, else None."""
    if root is not None:
        return Path(root)
    value = os.environ.get(VARIABLE)
    return Path(value) if value else None


def data_file(root: Path | None, relative: str, source: str) -> Path:
    """The path of a data file; an error where it is missing says how to come by it."""
    folder = data_root(root)
    if folder is not None and (folder / relative).is_file():
        return folder / relative
    if folder is None:
        looked = f"{relative} (the variable {VARIABLE} is not set)"
    else:
        looked = str(folder / relative)
    raise InputError(
        f"data file not found: {looked}; set {VARIABLE} to the folder that holds {relative}; "
        f"the data comes from {source}"
    )


def package_file(package: str, relative: str, project: str) -> Path:
    """The path of a data file inside an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InputError(
            f"data file not found: {package}/{relative}; it comes with the Python package "
            f"{project}: pip install {project} (it is not read from {VARIABLE})"
        )
    path = Path(spec.origin).parent / relative
    if not path.is_file():
        raise InputError(
            f"data file not found: {path}; the installed {project} does not hold it: reinstall it "
            f"(it is not read from {VARIABLE})"
        )
    return path


def expect(path: Path, what: str, found: object, wanted: object) -> None:
    """InputError where a data file does not have what it should."""
    if found != wanted:
        raise InputError(f"data file {path}: {what} is {found}, expected {wanted}")


def _broken(path: Path, error: Exception) -> InputError:
    return InputError(f"data file {path}: cannot be read: {type(error).__name__}: {error}")


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """A gzipped idx file of bytes, which must hold exactly `shape`."""
    size = int(np.prod(shape))
    header = 4 + 4 * len(shape)
    try:
        with gzip.open(path) as file:
            data = file.read(header + size + 1)  # one more: a longer file is noticed, not read
    except _BROKEN as error:
        raise _broken(path, error) from error
    expect(path, "the idx magic number", data[:4].hex(), bytes([0, 0, 8, len(shape)]).hex())
    found = tuple(int(n) for n in np.frombuffer(data[4:header].ljust(header - 4, b"\0"), ">i4"))
    expect(path, "the shape", found, shape)
    expect(path, "the content's length in bytes", len(data) - header, size)
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def read_npz(path: Path, arrays: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, Array]:
    """The named arrays of an .npz file, each of the (dtype, shape) stated."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > LIMIT:
            raise InputError(f"data file {path}: unpacks to {unpacked} bytes; {LIMIT} are allowed")
        with np.load(path, allow_pickle=False) as content:
            found = {name: content[name] for name in arrays}
    except _BROKEN as error:
        raise _broken(path, error) from error
    for name, (dtype, shape) in arrays.items():
        expect(path, f"the dtype of {name!r}", str(found[name].dtype), dtype)
        expect(path, f"the shape of {name!r}", found[name].shape, shape)
    return found


def read_table(path: Path, columns: int) -> NDArray[np.int64]:
    """A gzipped table of whole numbers, comma separated, without header."""
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.float64, ndmin=2)
    except _BROKEN as error:
        raise _broken(path, error) from error
    expect(path, "the number of columns", table.shape[1], columns)
    return table.astype(np.int64)


def read_rows(path: Path, columns: int) -> Iterator[list[str]]:
    """Rows of a csv file (gzipped where its name says so), each of the given length."""
    binary = gzip.open if path.suffix == ".gz" else open
    try:
        with binary(path, "rb") as file, io.TextIOWrapper(file, "utf-8", newline="") as text:
            for number, row in enumerate(csv.reader(text), start=1):
                expect(path, f"the number of columns in row {number}", len(row), columns)
                yield row
    except _BROKEN as error:
        raise _broken(path, error) from error
