"""The word in which an order is written."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Action(NamedTuple):
    """One thing that a device does, with all that it receives and sends for it.

    feed: the source loads a piece that another device begins with; forward (the loss included) and
    backward: a piece through a segment; update: of a segment, which has no piece; answer: the source
    hands a piece's output to the user.
    """

    what: Literal["feed", "forward", "backward", "update", "answer"]
    piece: int
    segment: int


Orders = dict[str, list[Action]]  # by device
