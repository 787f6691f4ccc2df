"""Saves what is known before a run ends with an error: the newest copy of all weights is here.

with saved_in_need(run, keeper, first, save): ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from weft.errors import LostDevice, WeftError
from weft.runtime.run.records.copies import Copy

if TYPE_CHECKING:
    from weft.runtime.run.records.keeper import Keeper
    from weft.runtime.run.run import Run

Save = Callable[["Run", Copy], str]  # returns why it was not written, or nothing


@contextlib.contextmanager
def saved_in_need(run: Run, keeper: Keeper | None, first: int, save: Save) -> Iterator[None]:
    """`first` is the minibatch that the run began with. The error of a lost device says what was saved."""
    try:
        yield
    except WeftError as error:
        copy = run.copies.newest
        if keeper is None or copy.step <= max(first, keeper.saved) or save(run, copy):
            raise
        if not isinstance(error, LostDevice):
            raise
        done = f"{copy.step} minibatches are saved in {keeper.folder.path}"
        on = "; --resume goes on with them" if copy.step < keeper.last else ""
        raise LostDevice(error.device, f"{error}. {done}{on}") from error
