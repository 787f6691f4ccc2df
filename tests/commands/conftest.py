"""A working folder for commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands.line import FLEET, PROFILE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a fleet and a profile; paths in the tests are relative to it."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    monkeypatch.chdir(tmp_path)
    return tmp_path
