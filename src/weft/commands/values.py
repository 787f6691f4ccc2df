"""Reads option values. Errors say what is allowed."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from weft.errors import InputError


def shape(text: str | None) -> tuple[int, ...] | None:
    """`1x28x28` as (1, 28, 28)."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(
            f"--input-shape {text!r} is not a shape; write one sample's sizes, such as 1x28x28"
        )
    return tuple(map(int, parts))


def arguments(texts: Sequence[str], option: str) -> dict[str, object]:
    """`--set-optimizer betas=0.9,0.95` several times: numbers, True, False, None or words."""
    return {key: _value(text) for key, text in settings(texts, option).items()}


def _value(text: str) -> object:
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value


def settings(texts: Sequence[str], option: str = "--set") -> dict[str, str]:
    """`--set key=value` several times."""
    values: dict[str, str] = {}
    example = ", such as route=min" if option == "--set" else ""
    for text in texts:
        key, equals, value = text.partition("=")
        key, value = key.strip(), value.strip()
        if not (equals and key and value):
            raise InputError(f"{option} {text!r} is not allowed; write key=value{example}")
        if key in values:
            raise InputError(f"{option} {key} is given twice: {values[key]!r} and {value!r}")
        values[key] = value
    return values


def names(text: str) -> list[str] | None:
    """`a,b,c`; None for `all`."""
    if text.strip() == "all":
        return None
    parts = [name.strip() for name in text.split(",")]
    if not all(parts):
        raise InputError(f"--strategies {text!r} is not a list; write a,b,c or all")
    return parts
