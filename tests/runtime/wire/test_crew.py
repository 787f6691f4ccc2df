"""The coordinator hears of its own run alone, and knows who is there."""

from __future__ import annotations

import queue
import struct
import threading
import time
from typing import Any

import pytest
import torch

from weft.errors import LostDevice, WeftError
from weft.runtime.node.node import Node
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics as keys
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.seal import REPLY, REPORT, Numbers, sealed
from weft.runtime.wire.session import Endpoints, free_endpoint, open_session
from weft.runtime.wire.state_pieces import PIECE_BYTES, state_answer

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


class OnTheWay:
    """Answers in a device's name what the device had sealed: without some pieces, or in another order."""

    def __init__(self, crew: Crew, pieces: list[msg.StatePiece]) -> None:
        self.crew, self.pieces, self.taken = crew, pieces, list(range(len(pieces)))

    def __call__(self, query: Any) -> None:
        key = self.crew.secret("r").keys("pi").device
        (count,) = struct.unpack("<Q", query.attachment.to_bytes()[:8])
        with query:
            for number in self.taken:
                payload = msg.pack(self.pieces[number])
                seal = sealed(key, REPLY, payload, count)
                query.reply(query.key_expr, payload, attachment=seal)


def test_an_answer_without_one_of_its_pieces_is_no_answer() -> None:
    """Seen in thought: each piece of a state has its own seal, so one in the middle could be left out, and
    the run went on with the weights that it had begun with."""
    where = free_endpoint()
    state = {name: torch.zeros(PIECE_BYTES // 4) for name in "abc"}
    with (
        Crew(Endpoints(listen=(where,)), "test-crew") as crew,
        open_session(Endpoints(join=(where,))) as session,
    ):
        way = OnTheWay(crew, list(state_answer(state, {})))
        queryable = session.declare_queryable(keys.control("test-crew", "pi"), way, complete=True)
        deadline = time.monotonic() + 30.0
        while not (answer := _whole(crew)):
            assert time.monotonic() < deadline
        assert [len(piece.data) > PIECE_BYTES for piece in answer] == [True] * 3 + [False]
        for way.taken in ([0, 2, 3], [1, 2, 3], [0, 1, 1, 2, 3], [3]):
            with pytest.raises(WeftError, match=r"pi sent pieces .* of its answer to `getstate`"):
                crew.ask("pi", msg.GetState("r"), 30.0)
        queryable.undeclare()


def _whole(crew: Crew) -> list[Any]:
    try:
        return crew.ask("pi", msg.GetState("r"), 30.0)
    except LostDevice:  # it is not known yet that somebody answers
        return []
