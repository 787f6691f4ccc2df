"""The record `Action`: an order is a list of actions."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Action(NamedTuple):
    """One step of a device's work, with the messages that it receives and sends for it.

    feed: the source loads a piece that another device computes first. forward (with the loss) and backward: a
    piece goes through a segment. update: a segment is updated; it has no piece. answer: the source hands a
    piece's output to the user.
    """

    what: Literal["feed", "forward", "backward", "update", "answer"]
    piece: int
    segment: int


Orders = dict[str, list[Action]]  # by device
