"""The desk of a service: bounded, in order, and nobody waits for ever."""

from __future__ import annotations

import threading

import pytest

from weft.errors import WeftError
from weft.runtime.run.serving.desk import Busy, Closed, Desk, Request


def desk(room: int, seconds: float = 30.0) -> Desk:
    return Desk(room, seconds, lambda: None)


def test_requests_are_taken_in_their_order() -> None:
    requests = [Request({}) for _ in range(5)]
    full = desk(8)
    full.put(requests[:3])
    full.put(requests[3:])
    assert full.take(2) == requests[:2]
    assert full.take(9) == requests[2:]
    assert full.take(9) == []


def test_a_full_desk_holds_its_callers_back_until_somebody_takes_a_request() -> None:
    small, requests = desk(2), [Request({}) for _ in range(6)]
    caller = threading.Thread(target=small.put, args=(requests,), daemon=True)
    caller.start()
    taken: list[Request] = []
    while len(taken) < 6:
        at_once = small.take(9)
        assert len(at_once) <= 2
        taken += at_once
    caller.join(30.0)
    assert not caller.is_alive()
    assert taken == requests


def test_a_caller_that_waited_too_long_is_told_so_and_its_request_is_not_carried_out() -> None:
    small = desk(1, seconds=0.05)
    small.put([Request({})])
    late = Request({})
    with pytest.raises(
        Busy, match=r"1 requests are waiting, and none of them was taken for 0\.05 s"
    ):
        small.put([late])
    assert late not in small.take(9)


def test_whoever_waits_when_the_desk_is_closed_gets_the_error() -> None:
    small = desk(1)
    first, second = Request({}), Request({})
    small.put([first])
    errors: list[WeftError] = []

    def call() -> None:
        try:
            small.put([second])
        except WeftError as error:
            errors.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    work = small.ask(lambda: 1)
    small.close(Closed("over"))
    caller.join(30.0)
    assert [str(error) for error in errors] == ["over"]
    for answer in (first.answer, work):
        with pytest.raises(Closed, match="over"):
            answer.result(0)
    with pytest.raises(Closed, match="over"):
        small.put([Request({})])
    with pytest.raises(Closed, match="over"):
        small.ask(lambda: 1)


def test_a_request_that_its_caller_has_cancelled_is_not_carried_out() -> None:
    requests = [Request({}) for _ in range(2)]
    some = desk(4)
    some.put(requests)
    assert requests[0].answer.cancel()
    assert some.take(9) == requests[1:]
