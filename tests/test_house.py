"""Rules that hold in the whole source tree, read from its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import weft
from weft.plans import registry

SOURCE = Path(weft.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
LINES = 400
# Who may name a strategy: the strategies, the papers' experiments, and the one place of the default.
MAY_NAME = ("strategies/", "papers/")
DEFAULT_NAME = ("plans/registry.py", registry.DEFAULT)
# Who may read what a plan tells people: tables, documents and papers; and Plan itself, to add to it.
MAY_READ_DECISIONS = ("report/", "papers/", "plans/plan.py")
# Names that do not say what a value is, and the folders in which no variable has one.
EMPTY_NAMES = {"found", "told", "given", "here", "more"}
NAMED_FOLDERS = (
    "graph/", "fleet/", "plans/", "program/", "simulate/", "planning/", "report/", "commands/",
    "strategies/", "papers/", "adapt/", "reference/", "web/",
)  # fmt: skip


def test_nobody_compares_a_strategys_name() -> None:
    """What a strategy can do stands in its record: no code outside its folder knows it by name."""
    names = set(registry.names())
    places = {
        f"{file}:{node.lineno}: {node.value!r}"
        for file, tree in _trees(*MAY_NAME)
        for node in _literals(tree)
        if node.value in names and (file, node.value) != DEFAULT_NAME
    }
    assert not places


def test_nobody_reads_decisions_but_reports_and_papers() -> None:
    places = {
        f"{file}:{node.lineno}"
        for file, tree in _trees(*MAY_READ_DECISIONS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "decisions"
    }
    assert not places


def test_no_file_is_long() -> None:
    """A file is about one thing; one that grows beyond this has become about two."""
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for folder in ("src/weft", "tests", "benchmarks", "proofs", "examples", "docs")
        for kind in ("*.py", "*.js", "*.css", "*.html")
        for path in (ROOT / folder).rglob(kind)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LINES
    }
    assert not long


def test_names_of_variables_say_what_they_hold() -> None:
    empty = {
        f"{file}:{node.lineno}: {name}"
        for file, tree in _trees()
        if file.startswith(NAMED_FOLDERS)
        for node in ast.walk(tree)
        for name in _variable(node)
        if name in EMPTY_NAMES
    }
    assert not empty


def _variable(node: ast.AST) -> Iterator[str]:
    """The name that a node gives to a variable or a parameter."""
    if isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def _trees(*left_out: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        if not file.startswith(left_out):
            yield file, _tree(path)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _literals(tree: ast.Module) -> Iterator[ast.Constant]:
    """Every string of the code. Docstrings are no code; no help text is as short as a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node
