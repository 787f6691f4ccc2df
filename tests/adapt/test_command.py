"""`weft train --adapt --trace`: any strategy on a fleet that changes, and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from weft.cli import app

FLEET = """
[[device]]
name = "phone"
gflops = 0.3
data = true
[[device]]
name = "near"
tier = "edge"
gflops = 1.5
[[device]]
name = "far"
tier = "cloud"
gflops = 1.0
[[link]]
between = ["phone", "near"]
mbps = 50
latency_ms = 1
[[link]]
between = ["phone", "far"]
mbps = 30
latency_ms = 5
"""
TRACE = '{"moment": [{"at_s": 1.0, "device": "near", "slowdown": 30}]}'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "trace.json").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weft(line: str) -> Result:
    return CliRunner().invoke(app, line.split(), prog_name="weft")


def test_any_strategy_adapts_on_a_live_emulated_fleet(folder: Path) -> None:
    """The server becomes thirty times slower; the strategy is asked again, and leaves it."""
    result = weft(
        "train mlp --data mnist5k --fleet fleet.toml -s chain --steps 140 --local --adapt "
        "--look-every 10 --trace trace.json --json --out run --set micro_batches=1"
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    # On a busy machine devices may seem to change for a while, so there may be more than one event. The
    # run is long enough for a second look after such a change.
    events = [e for e in document["events"] if "shards" in e]
    assert {e["kind"] for e in events} <= {"replanned", "worker_changed"}
    assert all("predicted" in e["why"] for e in events)
    assert any("near" in shard for shard in events[0]["shards"][0])
    assert not any("near" in shard for shard in events[-1]["shards"][1])
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(140))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--trace none.json --local", "none.json: No such file"),
        ("--trace fleet.toml --local", "is not a trace"),
        ("--trace trace.json", "--local"),
        ("--local --adapt --look-every 1", "look_every 1"),
    ],
)
def test_wrong_use_is_refused(folder: Path, options: str, says: str) -> None:
    result = weft(f"train mlp --data mnist5k --fleet fleet.toml -s chain --steps 5 {options}")
    assert result.exit_code == 2
    assert says in result.output
