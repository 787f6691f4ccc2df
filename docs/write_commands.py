"""Writes docs/commands.md from the command line's own declarations, so that the two cannot differ.

python docs/write_commands.py              writes the page
python docs/write_commands.py --check      exit code 1 where the page is not up to date
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main

from weft import cli
from weft.commands.app import app

PAGE = Path(__file__).resolve().parent / "commands.md"
KINDS = {Path: "PATH", int: "NUMBER", float: "NUMBER"}
HEAD = """# Commands

Written by `docs/write_commands.py` from the command line itself; do not edit.

Exit codes: 0 done, 1 the work failed, 2 wrong use or bad input. With `--json` one JSON document goes to
standard output and all else to standard error. MODEL is a name from `weft models`, or `file.py:factory` for
a network of your own ([capture](capture.md)). ENDPOINT looks like `192.0.2.7:7447`.
"""


def usage(name: str, command: Any) -> str:
    words = [f"weft {name}"]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            words.append((parameter.metavar or parameter.name).upper())
        elif parameter.required:
            words.append(f"{parameter.opts[0]} {value_of(parameter)}")
    return " ".join([*words, "[OPTIONS]"])


def value_of(parameter: Any) -> str:
    """What to write after an option's name; nothing after a flag."""
    if parameter.is_flag:
        return ""
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(choice.value for choice in kind)
    return str(parameter.metavar or KINDS.get(kind, "TEXT"))


def rows(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name == "argument" or getattr(parameter, "hidden", False):
            continue
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        default = parameter.default
        if isinstance(default, Enum):
            default = default.value
        nothing = default is None or default is False or default == () or callable(default)
        said = "" if nothing else f"{default}"
        if parameter.required:
            said = "required"
        if default is True:
            said = parameter.opts[0]
        value = value_of(parameter).replace("|", "\\|")  # else it would end the cell
        yield f"| {names} | {value} | {parameter.help or ''} | {said} |"


def section(name: str, command: Any) -> str:
    text, _, example = inspect.cleandoc(command.help or "").partition("\b")
    text = text.strip().replace("\\[", "[")  # a bracket that is no colour
    lines = [f"## weft {name}", "", text, "", f"    {usage(name, command)}", ""]
    if example.strip():
        shown = example.strip().removeprefix("Example:").strip().splitlines()
        lines += ["Example:", "", *(f"    {line.strip()}" for line in shown), ""]
    lines += ["| option | value | meaning | default |", "|---|---|---|---|", *rows(command)]
    return "\n".join(lines) + "\n"


def flat(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """All commands by their full names; `keys` has commands of its own."""
    for name in group.list_commands(None):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from flat(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def page() -> str:
    assert cli.main  # importing the command line has registered every command
    commands = flat(typer.main.get_command(app))
    return "\n".join([HEAD, *(section(name, command) for name, command in commands)])


def main() -> int:
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE.name} is not up to date: run python docs/write_commands.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
