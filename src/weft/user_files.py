"""The user's own Python files: `file.py:name` for a network, a strategy or a data set.

    place = file_and_name("my_net.py:build")           # (Path("my_net.py"), "build"), or None
    build = attribute(*place, what="model file")       # runs the file

A file is run only on the machine where the user typed its name. An error in the file becomes an InputError
that names the place.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

from weft.errors import InputError, WeftError


def file_and_name(text: str) -> tuple[Path, str] | None:
    """The two parts of `file.py:name`; None for a text of another form."""
    file, colon, name = text.rpartition(":")
    return (Path(file), name) if colon and file.endswith(".py") else None


def run_file(path: Path, what: str) -> dict[str, Any]:
    """Everything that a file defines, by name."""
    if not path.is_file():
        raise InputError(f"{what} {path}: there is no such file")
    with beside(path), as_input_error(f"{what} {path}"):
        return runpy.run_path(str(path))


def attribute(path: Path, name: str, what: str) -> Any:
    """The object with this name in a file."""
    defined = run_file(path, what)
    if name not in defined:
        raise InputError(f"{what} {path} has no {name!r}; it has: {own_names(defined)}")
    return defined[name]


def own_names(defined: dict[str, Any]) -> str:
    """The names that a user may have meant: a file's own functions and objects, without its imports."""

    def own(value: Any) -> bool:
        if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            return bool(value.__module__ == defined["__name__"])
        return callable(value)  # an object that the file made, such as a network

    names = [name for name, value in defined.items() if not name.startswith("_") and own(value)]
    return ", ".join(names) or "no function of its own"


@contextmanager
def beside(path: Path) -> Iterator[None]:
    """Makes modules in the file's folder importable, as if the file were run as a script."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def as_input_error(label: str) -> Iterator[None]:
    """An error in the user's code becomes an InputError of one line with the place. Weft's own errors are not
    changed."""
    try:
        yield
    except WeftError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename in label), None)
        where = f"{label} line {line}" if line is not None else label
        said = " ".join(str(error).split()) or "no message"
        raise InputError(f"{where} raised {type(error).__name__}: {said}") from None
