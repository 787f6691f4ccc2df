"""What a device sends to a run has limits: a device that turned bad does not fill the memory of the run."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

import pytest

from weft.errors import LostDevice, WeftError
from weft.runtime.wire import answers as limits
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics as keys
from weft.runtime.wire.answers import Answers, Events, error_in
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.seal import REPORT, Numbers, sealed
from weft.runtime.wire.session import Endpoints, free_endpoint, open_session

GROUP = "test-answers"
LONG_S = 60.0
MB = 1 << 20


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_answer_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: all that came was kept until the time of the question was over."""
    monkeypatch.setattr(limits, "MAX_ANSWER", 4 * MB)
    where = free_endpoint()
    piece = msg.pack(msg.Done("x" * MB))

    def without_end(query: Any) -> None:
        with query:
            for _ in range(200):
                query.reply(query.key_expr, piece)

    with (
        Crew(Endpoints(listen=(where,)), GROUP) as crew,
        open_session(Endpoints(join=(where,))) as session,
    ):
        queryable = session.declare_queryable(
            keys.control(GROUP, "bad"), without_end, complete=True
        )
        error: WeftError = LostDevice("bad", "")
        while isinstance(error, LostDevice):  # it is not known yet that somebody answers
            with pytest.raises(WeftError) as caught:
                crew.ask("bad", msg.Hello(), LONG_S)
            error = caught.value
        assert str(error) == f"bad answers `hello` with more than {4 * MB} bytes"
        queryable.undeclare()


def test_an_answer_keeps_no_more_than_its_limit() -> None:
    class Reply:
        ok, err = None, type("Error", (), {"payload": bytes(MB)})

    answers = Answers(10 * MB)
    for _ in range(1000):
        answers.take(Reply())
    assert answers.qsize() <= 11


def test_an_error_that_is_none_is_an_error() -> None:
    assert "none" in str(error_in("bad", msg.pack(msg.Progress("bad", 1))))


def test_reports_that_wait_have_a_limit_for_each_device() -> None:
    """Seen: reports came faster than the run took them, and all were kept."""
    events = Events(most=40 * MB)
    taken = [events.offer("bad", number, MB) for number in range(1000)]
    assert 5 <= sum(taken) <= 10  # a quarter is the most of one device
    assert events.dropped["bad"] == 1000 - sum(taken)
    assert events.offer("good", "report", MB)
    events.put(None)
    heard = [events.get(timeout=1.0) for _ in range(sum(taken) + 2)]
    assert heard == [*range(sum(taken)), "report", None]
    assert events.offer("bad", "again", MB)  # there is room again
    assert events.get_nowait() == "again"
    with pytest.raises(queue.Empty):
        events.get_nowait()


def test_a_report_that_is_too_large_is_dropped() -> None:
    numbers = Numbers()
    with Crew(Endpoints(listen=(free_endpoint(),)), GROUP) as crew:
        crew.listen("run")
        key = crew.secret("run").keys("pi").device
        for size in (17 * MB, 1):
            payload = msg.pack(msg.Kept("pi", 0, size, bytes(size)))
            seal = sealed(key, REPORT, payload, numbers.next())
            crew.session.put(keys.report(GROUP, "run", "pi"), payload, attachment=seal)
        heard = crew.events.get(timeout=LONG_S)
        assert heard.step == 1


def test_names_that_no_node_can_have_are_not_there() -> None:
    """Seen: `weft fleet` printed whatever somebody on an open network called a node: a terminal obeyed."""
    where = free_endpoint()
    with (
        Crew(Endpoints(listen=(where,)), GROUP) as crew,
        open_session(Endpoints(join=(where,))) as session,
    ):
        names = ("\x1b[2J", "a b", "x" * 65, "[/red]")
        tokens = [
            session.liveliness().declare_token(keys.alive(GROUP, name, "1"))
            for name in (*names, "pi")
        ]
        until(lambda: "pi" in crew.present)
        assert crew.present == ("pi",)
        tokens += [
            session.liveliness().declare_token(keys.alive(GROUP, "pi", f"{life}"))
            for life in range(200)
        ]
        tokens.append(session.liveliness().declare_token(keys.alive(GROUP, "nuc", "1")))
        until(lambda: "nuc" in crew.present)
        assert len(crew._present["pi"]) <= 64
        del tokens
