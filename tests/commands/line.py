"""One command line, run in this process, and the files that it reads."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from weft.cli import app

FLEET = """
[[device]]
name = "pi"
gflops = 0.9
memory_mb = 1024
data = true
[[device]]
name = "nuc"
tier = "edge"
gflops = 7.5
[[device]]
name = "cloud"
tier = "cloud"
gflops = 40.0
[[link]]
between = ["pi", "nuc"]
mbps = 5.0
latency_ms = 2.0
[[link]]
between = ["nuc", "cloud"]
mbps = 3.0
"""


def times(speed: float) -> dict[str, list[float]]:
    forward = [0.004 / speed, 0.006 / speed, 0.001 / speed]
    return {
        "forward_s": forward,
        "backward_s": [2 * t for t in forward],
        "update_s": [0.001 / speed] * 3,
    }


PROFILE = {
    "model": "three",
    "input_bytes": 49152,
    "layers": [
        {"name": "conv1", "param_bytes": 139776, "output_bytes": 19360},
        {"name": "conv2", "param_bytes": 1229824, "output_bytes": 8652},
        {"name": "fc3", "param_bytes": 40000, "output_bytes": 40},
    ],
    "devices": {"pi": times(1), "nuc": times(8), "cloud": times(50)},
}

PLAN = "plan three --fleet fleet.toml --profile profile.json --batch 64"


def weft(line: str) -> Result:
    return CliRunner().invoke(app, line.split(), prog_name="weft")


def document(line: str) -> Any:
    """The one JSON document that a command prints on stdout."""
    result = weft(line)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
