"""Channels of one sender on a shared medium."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from weft.runtime.wire.frames import Header, Payload
from weft.runtime.wire.ledger import Ledger
from weft.runtime.wire.links import changes
from weft.runtime.wire.links.changes import Changes, LinkState
from weft.runtime.wire.links.channel import Channel, OutLink
from weft.runtime.wire.links.shaping import clock_name
from weft.runtime.wire.session import Endpoints, free_endpoint, open_session


def test_a_medium_carries_messages_in_the_order_in_which_they_are_ready(tmp_path: Path) -> None:
    """Two messages for one neighbour, then one for another: the second does not wait for the third,
    though each neighbour has a queue of its own. The simulator counts in this order."""
    session = open_session(Endpoints(listen=(free_endpoint(),)))
    ledger = Ledger("gw")
    shared = clock_name("air")
    channels = {
        name: Channel(
            session, f"test-medium/{name}", OutLink(name, "air", 1e5, 0.0, shared), ledger,
            lambda _: False, record=True, scratch=tmp_path,
        )
        for name in ("a", "b")
    }  # fmt: skip
    payload = bytes(3000)  # 30 ms
    for at, name in enumerate(("a", "a", "b", "a")):
        header = Header("run", 1, 0, "down", at, 0, "gw", name, len(payload))
        channels[name].put(header, payload)
    while len(ledger.transfers) < 4:
        threads = [channel._thread for channel in channels.values()]
        assert all(thread is not None and thread.is_alive() for thread in threads)
        time.sleep(0.01)
    for channel in channels.values():
        channel.stop()
    session.close()
    spans = sorted(ledger.transfers, key=lambda span: span.start)
    assert [span.label for span in spans] == ["down0>a", "down1>a", "down2>b", "down3>a"]
    assert all(x.end <= y.start + 1e-9 for x, y in pairwise(spans))


def test_a_channel_that_carries_nothing_has_no_thread() -> None:
    """In a full mesh of 64 devices each one had 63 threads that never did anything."""
    session = open_session(Endpoints(listen=(free_endpoint(),)))
    before = threading.active_count()
    channels = [
        Channel(session, f"test-mesh/{n}", OutLink(f"d{n}", f"pi>d{n}", 1e6), Ledger("pi"), lambda _: False)
        for n in range(64)
    ]  # fmt: skip
    assert threading.active_count() == before
    channels[0].put(Header("run", 1, 0, "act", 0, 0, "pi", "d0", 10), bytes(10))
    assert channels[0]._thread is not None  # it waits for its link
    for channel in channels:
        channel.stop()
    assert not channels[0]._thread.is_alive()
    session.close()


def test_a_message_that_was_received_is_in_the_ledger_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receiver may answer before the sender has noted what it sent: a timeline then missed a message."""
    session = open_session(Endpoints(listen=(free_endpoint(),)))
    ledger = Ledger("pi")
    channel = Channel(
        session, "test-settle/nuc", OutLink("nuc", "pi>nuc", 1e6), ledger, lambda _: False, record=True
    )  # fmt: skip
    received, go_on = threading.Event(), threading.Event()

    def send(header: Header, payload: Payload) -> bytes:
        received.set()
        go_on.wait(30.0)
        return b""

    monkeypatch.setattr(channel.way, "send", send)
    channel.put(Header("run", 1, 0, "act", 0, 0, "pi", "nuc", 10), bytes(10))
    assert received.wait(30.0)
    channel.settle(0.01)  # the wait has an end
    assert not ledger.transfers
    asking = threading.Thread(target=channel.settle, args=(30.0,))
    asking.start()
    go_on.set()
    asking.join(30.0)
    assert [span.label for span in ledger.transfers] == ["act0>nuc"]
    channel.stop()
    session.close()


def test_nothing_is_sent_between_a_message_and_its_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads sent on one line. The first message had a rest, the second one was queued before that
    rest and was written into the middle of the first: the receiver closed the connection."""
    session = open_session(Endpoints(listen=(free_endpoint(),)))
    channel = Channel(
        session, "test-rest/nuc", OutLink("nuc", "pi>nuc"), Ledger("pi"), lambda _: False
    )
    sending, go_on, all_sent = threading.Event(), threading.Event(), threading.Event()
    log: list[str] = []

    def send(header: Header, payload: Payload) -> bytes:
        log.append(f"send {header.at}")
        if header.at:
            all_sent.set()
            return b""
        sending.set()
        go_on.wait(30.0)
        return b"rest"

    def finish(header: Header, payload: Payload, rest: bytes, stopped: threading.Event) -> None:
        log.append(f"finish {header.at}")

    monkeypatch.setattr(channel.way, "send", send)
    monkeypatch.setattr(channel.way, "finish", finish)
    headers = [Header("run", 1, 0, "act", at, 0, "pi", "nuc", 10) for at in (0, 1)]
    first = threading.Thread(target=channel.put, args=(headers[0], bytes(10)))
    first.start()
    assert sending.wait(30.0)
    channel.put(headers[1], bytes(10))  # the line is taken: this one is queued
    go_on.set()
    first.join(30.0)
    assert all_sent.wait(30.0)
    channel.stop()
    session.close()
    assert log == ["send 0", "finish 0", "send 1"]


def test_no_message_overtakes_one_that_the_thread_has_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The queue was empty, but its last message had not been sent: a later one was sent before it. Chunks
    that measure a link, and weights of which the newest counts, came in the wrong order."""
    session = open_session(Endpoints(listen=(free_endpoint(),)))
    channel = Channel(
        session, "test-order/nuc", OutLink("nuc", "pi>nuc"), Ledger("pi"), lambda _: False
    )
    taken, go_on, all_sent = threading.Event(), threading.Event(), threading.Event()
    log: list[int] = []

    def wait_for_link() -> bool:
        taken.set()
        return go_on.wait(30.0)

    def send(header: Header, payload: Payload) -> bytes:
        log.append(header.at)
        if len(log) == 2:
            all_sent.set()
        return b""

    monkeypatch.setattr(channel, "_wait_for_link", wait_for_link)
    monkeypatch.setattr(channel.way, "send", send)
    first = Header("run", 1, 0, "act", 0, 0, "pi", "nuc", 20, pieces=2)  # pieces wait in the queue
    channel.put(first, bytes(10))
    assert taken.wait(30.0)
    channel.put(Header("run", 1, 0, "act", 1, 0, "pi", "nuc", 10), bytes(10))
    go_on.set()
    assert all_sent.wait(30.0)
    channel.stop()
    session.close()
    assert log == [0, 1]


def test_a_message_that_cannot_be_sent_does_not_stop_those_behind_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread of the channel ended, and all later messages waited in its queue without a word."""
    session = open_session(Endpoints(listen=(free_endpoint(),)))
    ledger = Ledger("pi")
    channel = Channel(session, "test-error/nuc", OutLink("nuc", "pi>nuc"), ledger, lambda _: False)
    sent = threading.Event()

    def send(header: Header, payload: Payload) -> bytes:
        if not header.at:
            raise RuntimeError("the session was closed")
        sent.set()
        return b""

    monkeypatch.setattr(channel.way, "send", send)
    headers = [Header("run", 1, 0, "act", at, 0, "pi", "nuc", 20, pieces=2) for at in (0, 1)]
    for header in headers:
        channel.put(header, bytes(10))
    assert sent.wait(10.0)
    channel.stop()
    session.close()
    assert ledger.counts["bad"] == 1
    assert "pi>nuc: a message was lost" in caplog.text
    assert not channel.backlog
    assert not any(channel.waits(header) for header in headers)


def test_a_channel_ends_while_a_relayed_message_is_not_due() -> None:
    """The end of a run waited for five seconds, and left the thread behind."""
    session = open_session(Endpoints(listen=(free_endpoint(),)))
    channel = Channel(
        session, "test-due/nuc", OutLink("nuc", "gw>nuc", 1e6), Ledger("gw"), lambda _: False
    )
    due = time.monotonic() + 60.0
    channel.put(Header("run", 1, 0, "act", 0, 0, "pi", "nuc", 10, due=due), bytes(10))
    channel.stop()
    assert channel._thread is not None
    assert not channel._thread.is_alive()
    session.close()


def test_a_medium_that_changes_is_not_booked_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Who sends books at once, and the thread books what it relays."""
    session = open_session(Endpoints(listen=(free_endpoint(),)))
    air = Changes(0.0, ((0.0, 1.0),), {"air": (LinkState(0.0, 1e3, 0.0),)})
    channel = Channel(
        session, "test-twice/nuc", OutLink("nuc", "air", 1e3, shared=clock_name("air")), Ledger("gw"),
        lambda _: False, changes=air, scratch=tmp_path,
    )  # fmt: skip
    place, both = changes._place, threading.Barrier(2)

    def meet(times: list[float], now: float) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.3)
        return place(times, now)

    monkeypatch.setattr(changes, "_place", meet)
    with ThreadPoolExecutor(2) as threads:
        booked = list(threads.map(lambda _: channel._book(50.0, 1000), range(2)))
    assert sorted(booked) == [(50.0, 51.0), (51.0, 52.0)]
    channel.stop()
    session.close()
