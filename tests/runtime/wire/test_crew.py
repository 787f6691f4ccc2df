"""The coordinator hears of its own run alone."""

from __future__ import annotations

import queue

from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics as keys
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.session import Endpoints, free_endpoint


def test_what_an_earlier_run_said_last_does_not_reach_the_next_one() -> None:
    with Crew(Endpoints(listen=(free_endpoint(),)), "test-crew") as crew:
        for round in range(20):
            old, new = f"old{round}", f"new{round}"
            crew.listen(old)
            for step in range(200):
                crew.session.put(keys.report("test-crew", old), msg.pack(msg.Progress(old, step)))
            crew.listen(new)  # what was said is partly still in Zenoh's hands
            crew.session.put(keys.report("test-crew", new), msg.pack(msg.Progress(new, 0)))
            heard = crew.events.get(timeout=30.0)
            assert heard == msg.Progress(new, 0)
            try:
                raise AssertionError(f"heard {crew.events.get(timeout=0.05)} of {old}")
            except queue.Empty:
                continue
