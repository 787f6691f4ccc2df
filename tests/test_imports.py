"""The import contract: Weft's packages import each other one way only. `make lint` runs this file.

`LAYERS` is the table. A package may import the packages of every layer below its own, and no other
package of its own layer, so that no two packages can import each other. Some packages may import less than
that: `ONLY` lists what they may import. Imports inside functions count like all others; imports for the
type checker alone do not. `BY_NAME` lists the modules that import others by a name in a string.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"

# From the top of the house to the bottom. `strategies.*` is every strategy's folder, each for itself.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("commands",),
    ("papers", "loom", "chaos", "web", "doctor"),
    ("api",),
    ("report", "adapt"),
    ("runtime.run",),
    ("runtime.emulate",),
    ("runtime.node",),
    ("runtime.wire",),
    ("runtime.keys",),
    ("planning", "reference"),
    ("strategies",),
    ("strategies.*",),
    ("strategies.common",),
    ("simulate",),
    ("program",),
    ("plans",),
    ("codecs", "graph", "fleet"),
    ("zoo", "data", "dtypes", "stored", "user_files"),
    ("reading",),
    ("errors", "version", "draws", "showing"),
)

LEAVES = ("data", "dtypes", "draws", "errors", "showing", "stored", "version")
SCHEDULE = ("program.instructions", "program.timeline")
# A node knows no planner: what its packages may import of the layers below them.
ONLY: dict[str, tuple[str, ...]] = {
    "runtime.emulate": (
        "runtime.node",
        "runtime.wire",
        "runtime.keys",
        "fleet",
        *SCHEDULE,
        "graph",
        "codecs",
        *LEAVES,
    ),
    "runtime.node": ("runtime.wire", "runtime.keys", *SCHEDULE, "graph", "codecs", *LEAVES),
    "runtime.wire": ("runtime.keys", *SCHEDULE, "graph", "codecs", *LEAVES),
    "runtime.keys": ("errors",),
    "program.instructions": ("graph", "codecs", *LEAVES),
    "program.timeline": ("graph", "codecs", *LEAVES),
}

# Leaves of one layer that build on another leaf.
BESIDE = {("data", "user_files"), ("zoo", "user_files")}

# Who imports by a name in a string, and why.
BY_NAME = {
    "weft": "names of the package are imported when they are first used",
    "weft.plans.registry": "finds the strategies, which import `plans`",
    "weft.plans.strategy": "an ability of a strategy is imported when it is first used",
    "weft.papers.registry": "imports the paper that is asked for",
}


@dataclass(frozen=True)
class Import:
    """`module` imports `imported` in a line."""

    module: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.imported}"


def modules(sources: Path) -> dict[str, Path]:
    """The files of the package by module name."""
    names = {}
    for path in sorted((sources / "weft").rglob("*.py")):
        parts = path.relative_to(sources).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All that is below a node, without what only the type checker sees."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from statements(other)
        else:
            yield child
            yield from statements(child)


def imports(module: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """What a module imports of Weft."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            if node.level:  # from . import, from ..graph import
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                start = ".".join([*above, *([node.module] if node.module else [])])
            full = [f"{start}.{alias.name}" for alias in node.names]
            names = [name if name in known else start for name in full]
        else:
            continue
        for name in dict.fromkeys(names):
            if name == "weft" or name.startswith("weft."):
                yield Import(module, name, node.lineno)


def named_imports(module: str, path: Path) -> Iterator[str]:
    """Calls that import a module by a name in a string."""
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in ("import_module", "__import__"):
                yield f"{module}:{node.lineno} imports by a name; add it to BY_NAME with its reason"


def package_of(module: str) -> str:
    """The package of the table that a module belongs to."""
    parts = module.split(".")[1:]
    if parts[:1] in (["runtime"], ["strategies"]):
        return ".".join(parts[:2])
    return parts[0] if parts else ""


def layer_of(package: str) -> int | None:
    """The package's place in the table, counted from the top."""
    for number, layer in enumerate(LAYERS):
        if package in layer:
            return number
    if package.startswith("strategies."):
        return LAYERS.index(("strategies.*",))
    return None


def within(module: str, names: tuple[str, ...]) -> bool:
    """True where the module is one of the packages or modules, or lies in one."""
    return any(module == f"weft.{name}" or module.startswith(f"weft.{name}.") for name in names)


def why_not(found: Import) -> str | None:
    """Why an import breaks the contract; None where it keeps it."""
    here, there = package_of(found.module), package_of(found.imported)
    if found.module == "weft":
        return f"{found}: importing weft must import nothing else; name it in LATER"
    if found.imported == "weft":
        return f"{found}: import the module that has the name, not the package"
    if found.imported == "weft.runtime" or here == there:
        return None
    mine, its = layer_of(here), layer_of(there)
    if mine is None or its is None:
        missing = here if mine is None else there
        return f"{found}: {missing!r} has no place in LAYERS of tests/test_imports.py"
    if its < mine:
        return f"{found}: {there} stands above {here}"
    if its == mine and (here, there) not in BESIDE:
        return f"{found}: {here} and {there} stand beside each other"
    return None


def narrower(found: Import) -> str | None:
    """Why an import breaks a rule of ONLY."""
    for package, allowed in ONLY.items():
        if within(found.module, (package,)) and not within(found.imported, (package, *allowed)):
            return f"{found}: {package} may import only {', '.join(allowed)}"
    return None


def violations(sources: Path) -> list[str]:
    """All that breaks the contract, one line each."""
    known = modules(sources)
    lines: list[str] = []
    for module, path in known.items():
        for found in imports(module, path, known):
            lines += [line for line in (why_not(found) or narrower(found),) if line]
        if module not in BY_NAME:
            lines += named_imports(module, path)
    return lines


def cycle(sources: Path) -> list[str]:
    """Packages that import each other in a circle; empty where there are none."""
    known = modules(sources)
    edges: dict[str, set[str]] = {}
    for module, path in known.items():
        for found in imports(module, path, known):
            here, there = package_of(module), package_of(found.imported)
            if here != there:
                edges.setdefault(here, set()).add(there)
    closed: set[str] = set()

    def visit(package: str, above: list[str]) -> list[str]:
        if package in above:
            return [*above[above.index(package) :], package]
        if package in closed:
            return []
        for below in sorted(edges.get(package, ())):
            if circle := visit(below, [*above, package]):
                return circle
        closed.add(package)
        return []

    return next((c for package in sorted(edges) if (c := visit(package, []))), [])


def test_imports_point_one_way() -> None:
    broken = violations(SOURCES)
    assert not broken, "\n" + "\n".join(broken)


def test_no_packages_import_each_other_in_a_circle() -> None:
    circle = cycle(SOURCES)
    assert not circle, " -> ".join(circle)


def test_modules_that_import_by_name_exist() -> None:
    known = modules(SOURCES)
    for module in BY_NAME:
        assert list(named_imports(module, known[module])), f"{module} no longer imports by a name"


def tree(folder: Path, **files: str) -> Path:
    """A small package `weft`; `graph__fleets` is the file weft/graph/fleets.py."""
    for name, text in files.items():
        path = folder / "weft" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"graph__a": "from weft.fleet.fleet import Fleet"}, "beside each other"),
        ({"plans__a": "import weft.runtime.wire.session"}, "stands above"),
        ({"plans__a": "def f():\n    from weft.report import b"}, "stands above"),
        ({"plans__a": "from ..report.b import c"}, "stands above"),
        ({"strategies__coopai__a": "from weft.strategies.chain import b"}, "beside each other"),
        ({"runtime__node__a": "from weft.program.lower import b"}, "may import only"),
        ({"runtime__wire__a": "from weft.plans.plan import Plan"}, "may import only"),
        ({"program__timeline": "from weft.program.program import b"}, "may import only"),
        ({"planning__a": "from weft.runtime.run.run import Run"}, "stands above"),
        ({"graph__a": "from importlib import import_module\nimport_module('x')"}, "by a name"),
        ({"new__a": "import weft.errors"}, "no place in LAYERS"),
        ({"graph__a": "from weft import plan"}, "not the package"),
    ],
)
def test_a_broken_rule_is_found(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    (line,) = violations(tree(tmp_path, **files))
    assert reason in line


def test_what_the_type_checker_alone_imports_does_not_count(tmp_path: Path) -> None:
    text = """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from weft.report import b
    """
    assert violations(tree(tmp_path, plans__a=text)) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    files = {"a__x": "import weft.b.y", "b__y": "import weft.c.z", "c__z": "import weft.a.x"}
    assert cycle(tree(tmp_path, **files)) == ["a", "b", "c", "a"]
