"""EUA: where the edge servers and users of Melbourne's business district are."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.data.files import data_file, expect, read_rows
from weft.errors import InputError

_SOURCE = "the project swinedge/eua-dataset"


class Places(NamedTuple):
    """Rows of (latitude, longitude) in degrees."""

    servers: NDArray[np.float64]
    users: NDArray[np.float64]


def load_eua(root: Path | None = None) -> Places:
    """125 base stations and 816 user positions."""
    servers = data_file(root, "eua/site-optus-melbCBD.csv", _SOURCE)
    users = data_file(root, "eua/users-melbcbd-generated.csv", _SOURCE)
    return Places(
        _positions(servers, 10, ("LATITUDE", "LONGITUDE"), 125),
        _positions(users, 2, ("Latitude", "Longitude"), 816),
    )


def _positions(
    path: Path, columns: int, wanted: tuple[str, str], count: int
) -> NDArray[np.float64]:
    rows = list(read_rows(path, columns))
    header = rows.pop(0) if rows else []
    for name in wanted:
        expect(path, f"column {name!r} in the header", name in header, True)
    expect(path, "the number of rows", len(rows), count)
    latitude, longitude = (header.index(name) for name in wanted)
    try:
        found = np.array([[float(row[latitude]), float(row[longitude])] for row in rows])
    except ValueError as error:
        raise InputError(f"data file {path}: a position is not a number: {error}") from error
    if not (np.abs(found) <= (90.0, 180.0)).all():  # also false for nan
        raise InputError(f"data file {path}: a position lies outside +-90, +-180 degrees")
    return found
