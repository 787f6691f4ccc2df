"""A node starts light: it imports no planner, so that it fits on a small device."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# What a node needs of Weft, by package.
NEEDED = {
    "", "codecs", "data", "draws", "dtypes", "errors", "showing", "graph", "program", "runtime", "stored",
    "version",
}  # fmt: skip
LOADED = """
import json, sys
import weft.runtime.node.serve
print(json.dumps(sorted(name for name in sys.modules if name.split(".")[0] == "weft")))
"""


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    """The modules of Weft that a process has when it serves as a node."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=True)
    names: list[str] = json.loads(done.stdout)
    assert "weft.runtime.node.serve" in names
    return names


def test_a_node_imports_only_the_packages_it_needs(loaded: list[str]) -> None:
    packages = {name.split(".")[1] if "." in name else "" for name in loaded}
    assert packages <= NEEDED


def test_of_the_runtime_a_node_imports_node_wire_and_keys(loaded: list[str]) -> None:
    parts = {tuple(name.split(".")[2:3]) for name in loaded if name.startswith("weft.runtime")}
    assert parts == {(), ("keys",), ("node",), ("wire",)}


def test_of_programs_a_node_imports_instructions_and_timelines(loaded: list[str]) -> None:
    modules = {name for name in loaded if name.startswith("weft.program.")}
    assert modules == {"weft.program.instructions", "weft.program.timeline"}
