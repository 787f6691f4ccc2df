"""`weft chaos`: as many faults as were asked for."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from weft.cli import app


@pytest.mark.proof
def test_a_series_has_no_more_kills_than_were_asked_for() -> None:
    """A run has up to four faults: `--kills 1` killed four times."""
    pytest.importorskip("sklearn", reason="the extra [data] is not installed")
    line = "chaos cnn5 --strategy chain --kills 1 --steps 60 --seed 1 --json"
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["kills"], told["runs"]) == (1, 1)
