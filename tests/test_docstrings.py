"""Every public function and class of a module says what it is for; names in backquotes lead somewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "weft"
# What these decorators register carries a line for people already.
DESCRIBED = {"strategy", "paper"}
Definition = ast.FunctionDef | ast.ClassDef
PATH = re.compile(r"\b(?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|md)\b")
MODULE = re.compile(r"\bweft(?:\.[a-z_0-9]+)+")


@cache
def trees() -> dict[Path, ast.Module]:
    return {
        file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(SOURCE.rglob("*.py"))
    }


def public() -> Iterator[tuple[Path, Definition]]:
    for file, tree in trees().items():
        for node in tree.body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                yield file, node


def described(node: Definition) -> bool:
    calls = [d.func for d in node.decorator_list if isinstance(d, ast.Call)]
    return any(isinstance(call, ast.Name) and call.id in DESCRIBED for call in calls)


def docstrings() -> Iterator[tuple[Path, str]]:
    """Of modules, classes and functions, private ones too."""
    kinds = (ast.Module, ast.FunctionDef, ast.ClassDef)
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield file, text


def test_every_public_function_and_class_has_a_docstring() -> None:
    silent = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file, node in public()
        if not ast.get_docstring(node) and not described(node)
    ]
    assert silent == []


def test_docstrings_name_files_that_are_there() -> None:
    folders = [p for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith(".")]
    files = [
        str(p.relative_to(ROOT))
        for folder in folders
        for p in folder.rglob("*")
        if p.suffix in (".py", ".md")
    ]
    lost = [
        (str(file.relative_to(ROOT)), named)
        for file, text in docstrings()
        for named in PATH.findall(text)
        if not any(known == named or known.endswith(f"/{named}") for known in files)
    ]
    assert lost == []


def test_docstrings_name_modules_that_are_there() -> None:
    """The last word may be a function of the module before it."""
    import weft

    known = {
        ".".join(p.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        for p in SOURCE.rglob("*.py")
    }
    lost = [
        (str(file.relative_to(ROOT)), named)
        for file, text in docstrings()
        for named in MODULE.findall(text)
        if named not in known
        and named.rpartition(".")[0] not in known - {"weft"}
        and not (named.count(".") == 1 and named.partition(".")[2] in weft.__all__)
    ]
    assert lost == []
