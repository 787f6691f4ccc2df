"""Reads a user's file, if it is not larger than such a file can be."""

from __future__ import annotations

import os
from pathlib import Path

from weft.errors import InputError


def read_bounded(path: str | Path, most: int, what: str) -> bytes:
    """The bytes of a file. InputError where it cannot be read, or has more than `most` bytes; no more than
    that are read."""
    try:
        with Path(path).open("rb") as file:
            long = os.fstat(file.fileno()).st_size > most  # then not even a part is read
            data = b"" if long else file.read(most + 1)
    except OSError as error:
        raise InputError(f"{what} {path}: {error.strerror or error}") from None
    if long or len(data) > most:
        raise InputError(f"{what} {path} is larger than the {most} bytes allowed")
    return data
