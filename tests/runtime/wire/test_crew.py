"""The coordinator hears of its own run alone, and knows who is there."""

from __future__ import annotations

import queue
import threading

import pytest

from weft.errors import LostDevice
from weft.runtime.node.node import Node
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics as keys
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.seal import REPORT, Numbers, sealed
from weft.runtime.wire.session import Endpoints, free_endpoint, open_session

NUMBERS = Numbers()


def report(crew: Crew, run: str, step: int, key: bytes | None = None) -> tuple[bytes, bytes]:
    """What pi reports of a run, with its own key or another."""
    payload = msg.pack(msg.Progress("pi", step))
    key = key or crew.secret(run).keys("pi").device
    seal = sealed(key, REPORT, payload, NUMBERS.next())
    crew.session.put(keys.report("test-crew", run, "pi"), payload, attachment=seal)
    return payload, seal


def test_forged_and_replayed_reports_are_dropped() -> None:
    """Of another device of the run, of another run, without a seal, in another's name, and a second time."""
    with Crew(Endpoints(listen=(free_endpoint(),)), "test-crew") as crew:
        crew.listen("run")
        secret = crew.secret("run")
        for key in (secret.keys("nuc").device, secret.tensors, crew.secret("x").keys("pi").device):
            report(crew, "run", 1, key)
        payload, seal = report(crew, "run", 2)
        topic = keys.report("test-crew", "run", "pi")
        crew.session.put(topic, payload, attachment=seal)
        crew.session.put(topic, payload)
        crew.session.put(topic, msg.pack(msg.Progress("pi", 3)), attachment=seal)
        crew.session.put(keys.report("test-crew", "run", "nuc"), payload, attachment=seal)
        report(crew, "run", 4)
        steps = [crew.events.get(timeout=30.0) for _ in range(2)]
        assert steps == [msg.Progress("pi", 2), msg.Progress("pi", 4)]
        assert crew.events.empty()


def test_what_an_earlier_run_said_last_does_not_reach_the_next_one() -> None:
    with Crew(Endpoints(listen=(free_endpoint(),)), "test-crew") as crew:
        for round in range(20):
            old, new = f"old{round}", f"new{round}"
            crew.listen(old)
            for step in range(200):
                report(crew, old, step)
            crew.listen(new)  # what was said is partly still in Zenoh's hands
            report(crew, new, 0)
            heard = crew.events.get(timeout=30.0)
            assert heard == msg.Progress("pi", 0)
            try:
                raise AssertionError(f"heard {crew.events.get(timeout=0.05)} of {old}")
            except queue.Empty:
                continue


def test_the_late_end_of_an_earlier_life_does_not_hide_a_node_that_was_started_again() -> None:
    """Seen: the connection of a dead node closed after its successor had come."""
    where = free_endpoint()
    with Crew(Endpoints(listen=(where,)), "test-crew") as crew:
        first, second = (open_session(Endpoints(join=(where,))) for _ in range(2))
        try:
            tokens = [
                session.liveliness().declare_token(keys.alive("test-crew", "pi", life))
                for life, session in (("a", first), ("b", second))
            ]
            with crew._changed:
                both = crew._changed.wait_for(lambda: len(crew._present.get("pi", ())) == 2, 30.0)
            assert both
            assert tokens
            first.close()
            heard = crew.events.get(timeout=30.0)
            assert isinstance(heard, LostDevice)
            assert heard.device == "pi"
            assert crew.present == ("pi",)
        finally:
            first.close()
            second.close()


def test_a_node_that_does_not_know_the_run_counts_as_lost() -> None:
    """It was started again: what it held is gone, and the run recovers as from its death."""
    where = free_endpoint()
    with (
        Crew(Endpoints(listen=(where,)), "test-crew") as crew,
        Node("pi", Endpoints(join=(where,)), "test-crew") as node,
    ):
        stop = threading.Event()
        thread = threading.Thread(target=node.serve, args=(stop,))
        thread.start()
        try:
            crew.wait_for(["pi"], 30.0)
            with pytest.raises(LostDevice, match="was started again: pi has no part in run r"):
                crew.ask("pi", msg.Where("r"), 30.0)
        finally:
            stop.set()
            thread.join(30.0)
