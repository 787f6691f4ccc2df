"""Weft's errors. Failed work and wrong input are separate, because scripts treat them differently.

say(printable(error))       # another device's words cannot command the terminal
"""

from __future__ import annotations

import re

# Control characters but the line's end and the tab: a terminal obeys them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: object) -> str:
    """A text for people, in which control characters are written out. Texts come from other devices and from
    files too: of a name, an error or an event nobody knows what is in it."""
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], str(text))


class WeftError(Exception):
    """The work failed (exit code 1): a device died, a deadline passed, a plan does not fit."""

    exit_code = 1


class InputError(WeftError):
    """The request cannot be carried out (exit code 2): a bad file, an unknown name, a wrong value.

    The message names the place, the wrong value, and what is allowed.
    """

    exit_code = 2


class LostDevice(WeftError):
    """A device died or stayed silent past its deadline; `device` says which."""

    def __init__(self, device: str, message: str) -> None:
        super().__init__(message)
        self.device = device
