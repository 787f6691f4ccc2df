"""`weft keys`, and `weft node` with and without keys, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from weft.cli import app


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def weft(line: str) -> Result:
    return CliRunner().invoke(app, line.split())


def test_new_invite_list(tmp_path: Path) -> None:
    assert weft("keys new --group lab").exit_code == 0
    assert (tmp_path / "weft" / "lab" / "authority.key").is_file()
    printed = weft("keys invite pi --listen 192.0.2.7:7447 --group lab")
    assert printed.exit_code == 0
    (line,) = [x for x in printed.stdout.splitlines() if x.startswith("weft node")]
    assert line.startswith("weft node --name pi --invite weft1:")
    assert json.loads(weft("keys list --group lab --json").stdout) == {
        "fleet": "lab",
        "number": 2,
        "devices": [{"name": "pi", "address": "192.0.2.7:7447", "state": "member"}],
    }


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("keys list", "weft keys new"),
        ("keys invite pi", "weft keys new"),
        ("keys revoke pi", "weft keys new"),
        ("keys new --group a/b", "a/b"),
        ("keys new --group owner", "owner"),
        ("node --name pi --listen 0.0.0.0:7447", "weft keys invite pi"),
        ("node --name pi --listen tcp/192.0.2.7:7447", "--open"),
        ("node --name pi --invite weft1:nonsense", "damaged"),
        ("node --name pi --open --invite weft1:x", "--open means without keys"),
    ],
)
def test_wrong_use_ends_with_two_and_names_what_to_do(line: str, says: str) -> None:
    result = weft(line)
    assert result.exit_code == 2, result.output
    assert says in result.output


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("keys new", "has keys already"),
        ("keys invite authority", "authority"),
        ("keys invite pi --listen nowhere", "192.0.2.7:7447"),
        ("keys revoke pi", "not a member"),
        ("node --name pi", "weft keys invite pi"),
        ("fleet --join tcp/127.0.0.1:1", "leave tcp/ out"),
    ],
)
def test_wrong_use_with_keys(line: str, says: str) -> None:
    assert weft("keys new").exit_code == 0
    result = weft(line)
    assert result.exit_code == 2, result.output
    assert says in result.output


def test_an_open_node_says_at_every_start_that_it_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(
        "weft.runtime.node.serve.serve_node", lambda name, *_, **__: started.append(name)
    )
    for _ in range(2):
        result = weft("node --name pi --open")
        assert "warning: pi is open: anybody who can reach this device may use it" in result.output
    assert started == ["pi", "pi"]
