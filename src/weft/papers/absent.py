"""Claims on data that is not on this machine: such a claim names the file, and is not reproduced.

why = why_not_there("emnist-letters")
absent_claim("fig18-letters", "EMNIST Letters", 85.0, why)
"""

from __future__ import annotations

from weft.errors import InputError
from weft.papers.claims import Claim, Said


def why_not_there(name: str) -> str | None:
    """None if a data set can be read; else the error that names the missing file."""
    from weft import data

    try:
        data.load(name)
    except InputError as error:
        return str(error)
    return None


def absent_claim(id: str, what: str, paper: Said, why: str, note: str = "") -> Claim:
    """The claim that could not be run, with the file that it needs."""
    file = why.partition(";")[0].removeprefix("data file not found: ")
    reason = f"It is run where the data is: {why} {note}".strip()
    return Claim(id, what, paper, f"data not there: {file}", "", False, reason)
