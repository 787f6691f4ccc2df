"""Hands the owner's newest list to every device that is there."""

from __future__ import annotations

import time

from weft.runtime.keys.members import SignedMembers
from weft.runtime.wire import topics
from weft.runtime.wire.keeper import Number, TakeList, ask
from weft.runtime.wire.session import Endpoints, open_session

ROUND_S = 0.3  # between two rounds: declarations of nodes arrive at their own pace


def hand_out(endpoints: Endpoints, signed: SignedMembers, seconds: float) -> dict[str, bool]:
    """The devices that have this list now; True for those at work, where it counts after their run.

    `endpoints` have the list of before, so that a device that is no longer on it can be told too. This looks
    for `seconds` at most, and ends when everybody has answered.
    """
    assert endpoints.keys is not None
    members = signed.opened()
    wanted = {d.name for d in (*members.present, *endpoints.keys.members.present)}
    key = topics.fence(members.fleet, "*")
    outcome: dict[str, bool] = {}
    session = open_session(endpoints)
    try:
        deadline = time.monotonic() + seconds
        while wanted - outcome.keys() and time.monotonic() < deadline:
            for answer in ask(session, key, TakeList(signed), min(1.0, seconds)):
                if isinstance(answer, Number) and answer.number >= members.number:
                    outcome[answer.name] = answer.busy
            time.sleep(ROUND_S)
    finally:
        session.close()
    return outcome
