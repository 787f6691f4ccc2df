"""Which features a run with a strategy has, and which it refuses: the matrix strategy x feature.

    refusal("fedavg", "own data")       # why not; None where nothing speaks against it
    require("fedavg", "own data")       # InputError: called before anything starts
    matrix().rows[0].cells["adapt"]     # "works" | "refused: why" | "untested"

The refusals are in the strategies' records. "works" needs a proof: a real run that was recorded in
features.json. A cell that is not refused and has no proof is "untested".
"""

from __future__ import annotations

from importlib import resources
from typing import get_args

import msgspec
from msgspec import Struct

from weft.errors import InputError
from weft.plans import registry
from weft.plans.protocols import Feature

FEATURES: tuple[Feature, ...] = get_args(Feature)
WORKS, UNTESTED = "works", "untested"
PROOFS = "features.json"

Proofs = dict[str, dict[Feature, str]]  # by strategy and feature: the run that showed it


class FeatureRow(Struct, frozen=True):
    """The features of one strategy: each cell is "works", "untested" or "refused: why"."""

    strategy: str
    cells: dict[Feature, str]


class Matrix(Struct, frozen=True):
    """The matrix as `weft strategies --features --json` prints it."""

    features: tuple[Feature, ...]
    rows: tuple[FeatureRow, ...]


def refusal(strategy: str | registry.Strategy, feature: Feature) -> str | None:
    """Why a run with this strategy refuses the feature; None if it does not."""
    record = registry.get(strategy) if isinstance(strategy, str) else strategy
    return record.refuses.get(feature)


def require(strategy: str | registry.Strategy, *features: Feature) -> None:
    """Raises InputError for the first feature that a run with this strategy refuses."""
    record = registry.get(strategy) if isinstance(strategy, str) else strategy
    for feature in features:
        why = refusal(record, feature)
        if why is not None:
            raise InputError(
                f"strategy {record.name} does not have {feature!r}: {why}; "
                "`weft strategies --features` shows what works with which strategy"
            )


def matrix(proofs: Proofs | None = None) -> Matrix:
    """Every strategy with every feature."""
    known = recorded() if proofs is None else proofs
    rows = (
        FeatureRow(name, {feature: _cell(name, feature, known) for feature in FEATURES})
        for name in registry.names()
    )
    return Matrix(FEATURES, tuple(rows))


def recorded() -> Proofs:
    """The proofs that come with Weft; `make proof` writes them."""
    file = resources.files("weft.planning").joinpath(PROOFS)
    return msgspec.json.decode(file.read_bytes(), type=Proofs)


def _cell(strategy: str, feature: Feature, proofs: Proofs) -> str:
    why = refusal(strategy, feature)
    if why is not None:
        return f"refused: {why}"
    return WORKS if feature in proofs.get(strategy, {}) else UNTESTED
