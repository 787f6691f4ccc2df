"""Strategies from outside of Weft: from installed packages, and from files that the user names.

    [project.entry-points."weft.strategies"]       # in the package's pyproject.toml
    mine = "my_package.strategies:mine"

    weft plan lenet5 -f fleet.toml -s my_file.py:mine

Both name a function that takes a Task and returns a Plan. If the function has options or abilities, it is
registered with `@strategy`. Otherwise its name is that of the entry point or of the function.
"""

from __future__ import annotations

import dataclasses
import warnings
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.plans.plan import Plan
from weft.plans.strategy import STRATEGIES, Strategy, registered, strategy
from weft.plans.task import Task
from weft.user_files import as_input_error, beside, own_names, run_file

GROUP = "weft.strategies"
_FROM_FILES: dict[tuple[Path, int, str], Strategy] = {}  # by file, its time of change, and name


@lru_cache(maxsize=1)
def load_plugins() -> None:
    """Registers the strategies of installed packages, once. A warning names each strategy that cannot be
    used."""
    for entry in metadata.entry_points(group=GROUP):
        try:
            offered = entry.load()
            if not callable(offered):
                raise TypeError(f"it is a {type(offered).__name__}, not a function of a Task")
            if registered(offered) is None:
                strategy(entry.name, summary_of(offered))(offered)
        except Exception as error:
            said = " ".join(str(error).split()) or "no message"
            warnings.warn(
                f"strategy {entry.name} of an installed package ({entry.value}) is left out: "
                f"{type(error).__name__}: {said}",
                stacklevel=2,
            )


def from_file(path: Path, name: str) -> Strategy:
    """A strategy in the user's file: a function of a Task, or a strategy that is registered there."""
    if not path.is_file():
        raise InputError(f"strategy file {path}: there is no such file")
    key = (path.resolve(), path.stat().st_mtime_ns, name)
    if key not in _FROM_FILES:
        _FROM_FILES[key] = _safe(_read(path, name), path)
    return _FROM_FILES[key]


def named_before(name: str) -> Strategy | None:
    """The newest strategy of this name among those that were read from files."""
    return next((s for s in reversed(_FROM_FILES.values()) if s.name == name), None)


def _read(path: Path, name: str) -> Strategy:
    before = dict(STRATEGIES)
    try:
        defined = run_file(path, "strategy file")
        registered_here = {key: s for key, s in STRATEGIES.items() if key not in before}
        function: Any = defined.get(name)
        named = registered(function) or registered_here.get(name)
    finally:  # a file's strategies are found by their file, which may be read again
        STRATEGIES.clear()
        STRATEGIES.update(before)
    if named is None and not callable(function):
        known = ", ".join(registered_here) or own_names(defined)
        raise InputError(f"strategy file {path} has no function {name!r}; it has: {known}")
    record = named or Strategy(name, summary_of(function), function)
    if record.name in STRATEGIES:
        raise InputError(
            f"{path}:{name} is called {record.name!r}, as another strategy is; give it another name"
        )
    return record


def _safe(record: Strategy, path: Path) -> Strategy:
    """The same strategy. An error in the user's function becomes an InputError that names the file."""

    def decide(task: Task) -> Plan:
        with beside(path), as_input_error(f"{path}:{record.name}"):
            return record.decide(task)

    return dataclasses.replace(record, decide=decide)


def summary_of(function: Any) -> str:
    """The first line of a function's docstring."""
    lines = (getattr(function, "__doc__", None) or "").strip().splitlines()
    return lines[0] if lines else "without a description"
