"""What a crew knows of a device that was started again, or that is silent just when it is asked."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from weft.errors import LostDevice
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics as keys
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.session import Endpoints, free_endpoint, open_session

GROUP = "test-lives"


@pytest.fixture
def lives() -> Iterator[tuple[Crew, list[Any]]]:
    """A crew, and two lives of the device pi. The first one has not ended when the second one comes."""
    where = free_endpoint()
    with Crew(Endpoints(listen=(where,)), GROUP) as crew, contextlib.ExitStack() as stack:
        sessions, tokens = [], []
        for life in ("a", "b"):
            session = open_session(Endpoints(join=(where,)))
            stack.callback(session.close)
            tokens.append(session.liveliness().declare_token(keys.alive(GROUP, "pi", life)))
            sessions.append(session)
            with crew._changed:
                assert crew._changed.wait_for(lambda: lives_of(crew) == len(tokens), 30.0)
        yield crew, sessions
        assert tokens


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15.0
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives_of(crew: Crew) -> int:
    return len(crew._present.get("pi", ()))


def test_a_device_that_was_started_again_counts_as_lost_at_once_and_once(
    lives: tuple[Crew, list[Any]],
) -> None:
    """If a device loses its power, Zenoh tells after 10 s that its life has ended. The run had taken the
    device back by then, and lost it a second time."""
    crew, sessions = lives
    heard = crew.events.get(timeout=5.0)  # both lives are there
    assert isinstance(heard, LostDevice)
    assert heard.device == "pi"
    sessions[0].close()
    with crew._changed:
        assert crew._changed.wait_for(lambda: lives_of(crew) == 1, 30.0)
    with pytest.raises(queue.Empty):
        crew.events.get(timeout=0.5)
    assert crew.present == ("pi",)
    sessions[1].close()
    heard = crew.events.get(timeout=30.0)
    assert isinstance(heard, LostDevice)
    assert crew.present == ()


def test_a_device_that_is_silent_already_is_not_waited_for() -> None:
    """A device fell silent while the run made a plan. The run then waited for it until the deadline."""
    with LocalFleet(("pi", "nuc")) as local:
        crew = local.crew
        crew.wait_for(local.names, 60.0)
        crew.watch(local.names, 1.0)
        time.sleep(1.0)  # heartbeats are heard
        local.silence("pi")
        try:
            wait_until(lambda: crew.silent == ("pi",))
            begin = time.monotonic()
            with pytest.raises(LostDevice, match="pi is silent"):
                crew.ask("pi", msg.Hello(), 20.0)
            assert time.monotonic() - begin < 5.0
        finally:
            local.wake("pi")
        wait_until(lambda: "pi" in crew.present)
        assert crew.ask("pi", msg.Hello(), 20.0)
