"""Reading values out of TOML tables with errors that say where, what, and what is allowed.

table = Table("fleet.toml", "link", 2, {"mbps": 0})
table.number("mbps", above=0)
# InputError: fleet.toml: [[link]] 2: mbps = 0 is not allowed; it must be a number above 0
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from weft.errors import InputError

# Names become parts of message keys and of channel names ("pi>nuc"), so little is allowed in them.
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NAME_RULE = "1 to 64 letters, digits, _ or -"


class Table:
    """One [[kind]] table of a file, with its position, so that every error can name it."""

    def __init__(self, where: str, kind: str, index: int, values: Mapping[str, Any]) -> None:
        self.where = where
        self.kind = kind
        self.index = index
        self.values = values
        self.label = ""  # the user's name for it, as soon as it is known

    def __str__(self) -> str:
        return f"{self.where}: [[{self.kind}]] {self.index}" + (self.label and f" ({self.label})")

    def has(self, key: str) -> bool:
        return key in self.values

    def missing(self, key: str, rule: str) -> NoReturn:
        raise InputError(f"{self}: {key} is missing; it must be {rule}")

    def refuse(self, key: str, rule: str) -> NoReturn:
        raise InputError(
            f"{self}: {key} = {show(self.values[key])} is not allowed; it must be {rule}"
        )

    def only(self, keys: Iterable[str]) -> None:
        """Refuse keys that this kind of table does not have."""
        allowed = list(keys)
        for key, value in self.values.items():
            if key not in allowed:
                raise InputError(
                    f"{self}: unknown key {key} = {show(value)};{near(key, allowed)} "
                    f"allowed keys: {', '.join(allowed)}"
                )

    def number(
        self,
        key: str,
        *,
        above: float | None = None,
        below: float | None = None,
        default: float | None = None,
    ) -> float:
        """A finite number above `above`; without `above` a number from 0 up, and below `below` if that is
        given."""
        value = self.optional_number(key, above=above, below=below)
        if value is not None:
            return value
        if default is None:
            self.missing(key, _number_rule(above, below))
        return default

    def optional_number(
        self, key: str, *, above: float | None = None, below: float | None = None
    ) -> float | None:
        if not self.has(key):
            return None
        value = self.values[key]
        rule = _number_rule(above, below)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(key, rule)
        try:
            number = float(value)
        except OverflowError:
            self.refuse(key, rule)
        enough = number >= 0 if above is None else number > above
        if not math.isfinite(number) or not enough or (below is not None and number >= below):
            self.refuse(key, rule)
        return number

    def optional_whole(self, key: str) -> int | None:
        """A whole number from 1 up."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 53:
            self.refuse(key, "a whole number from 1 up")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def name(self, key: str) -> str:
        """A name that has only allowed characters."""
        if not self.has(key):
            self.missing(key, NAME_RULE)
        value = self.values[key]
        if not isinstance(value, str) or not NAME.fullmatch(value):
            self.refuse(key, NAME_RULE)
        return value

    def names(self, key: str, rule: str) -> tuple[str, ...]:
        """A list of strings."""
        if not self.has(key):
            self.missing(key, rule)
        value = self.values[key]
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            self.refuse(key, rule)
        return tuple(value)


def _number_rule(above: float | None, below: float | None) -> str:
    rule = "a number from 0 up" if above is None else f"a number above {above:g}"
    return rule if below is None else f"{rule} and below {below:g}"


def near(word: str, allowed: Iterable[str]) -> str:
    """' did you mean ...?' with the allowed word that is most similar; empty if none is."""
    matches = difflib.get_close_matches(word, list(allowed), n=1)
    return f" did you mean {matches[0]}?" if matches else ""


def show(value: Any) -> str:
    """A TOML value as the user may have written it, cut to a readable length."""
    if isinstance(value, float):
        text = repr(value)
    else:
        text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
