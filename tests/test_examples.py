"""The examples run as they stand."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_an_own_loader_with_a_schedule_and_clipping_learns() -> None:
    losses = runpy.run_path(str(EXAMPLES / "own_loader.py"))["main"](steps=24)
    assert len(losses) == 24
    assert losses[-1] < losses[0] / 2
