"""Hands the owner's newest list to every device that is there."""

from __future__ import annotations

import time

from weft.runtime.keys.folder import Folder
from weft.runtime.wire import topics
from weft.runtime.wire.keeper import Number, TakeList, ask
from weft.runtime.wire.reach import reach
from weft.runtime.wire.session import open_session

ROUND_S = 0.3  # between two rounds: declarations of nodes arrive at their own pace


def hand_out(group: str, join: tuple[str, ...], seconds: float) -> dict[str, bool]:
    """The devices that have the newest list now; True for those at work, where it counts after their run.

    It looks for `seconds` at most, and ends when every member has answered.
    """
    endpoints = reach(group, join=join)
    folder = Folder(group)
    signed = folder.members()
    members = signed.opened()
    wanted = {d.name for d in members.present}
    outcome: dict[str, bool] = {}
    session = open_session(endpoints)
    try:
        deadline = time.monotonic() + seconds
        while wanted - outcome.keys() and time.monotonic() < deadline:
            for answer in ask(session, topics.fence(group, "*"), TakeList(signed), 1.0):
                if isinstance(answer, Number) and answer.number >= members.number:
                    outcome[answer.name] = answer.busy
            time.sleep(ROUND_S)
    finally:
        session.close()
    return {name: busy for name, busy in outcome.items() if name in wanted}
