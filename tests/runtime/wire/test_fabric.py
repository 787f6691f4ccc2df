"""Several threads meet in a fabric: Zenoh's, the door's, those that send, and that of the commands."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from weft.errors import WeftError
from weft.runtime.wire import fabric as fabrics
from weft.runtime.wire import pieces
from weft.runtime.wire.carrier.line import Line
from weft.runtime.wire.carrier.opening import LineOpener
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.frames import Buffer, Header
from weft.runtime.wire.links.channel import Channel, OutLink, Roads
from weft.runtime.wire.session import Endpoints, door_hosts, free_endpoint, open_session

KEY = b"k" * 32
MEET_S = 0.3  # that a thread waits for one that a lock keeps out
PI = OutLink("pi", "nuc>pi")


@pytest.fixture
def nuc() -> Iterator[Fabric]:
    ends = Endpoints(listen=(free_endpoint(),))
    session = open_session(ends)
    fabric = Fabric(session, "meet", "nuc", None, door_hosts(ends))
    fabric.begin("one", Roads((PI,)), record=False, key=KEY)
    yield fabric
    fabric.close()
    session.close()


def header(run: str, number: int, **more: Any) -> Header:
    return Header(run, 0, 7, "act", 2, 1, "pi", "nuc", 10, count=number, **more)


@pytest.mark.parametrize("count", [1, 2])
def test_a_late_message_does_not_reach_the_next_run(
    nuc: Fabric, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A thread has found that a message is of the run under way; then the run ends, and another one begins.
    The message has the same name there: it was taken for the next run's, and that one for its double."""
    room = nuc._room

    def change_the_run() -> int:
        monkeypatch.setattr(nuc, "_room", room)
        nuc.begin("two", Roads((PI,)), record=False, key=KEY)
        return room()

    monkeypatch.setattr(nuc, "_room", change_the_run)
    nuc._take(header("one", 1, pieces=count), b"old  "[: 10 // count])
    assert nuc.run == "two"
    for piece in range(count):
        part = header("two", 2 + piece, piece=piece, pieces=count)
        nuc._take(part, b"the newest"[piece * 5 :][: 10 // count])
    assert nuc.mailbox.take(part.key, 30.0, str).payload == b"the newest"
    assert not nuc.counts["doubled"]


class Meeting(dict[int, Buffer]):
    """The parts of a message; who adds one waits for the other thread, if that can come."""

    def __init__(self, both: threading.Barrier) -> None:
        super().__init__()
        self._both = both

    def __setitem__(self, place: int, part: Buffer) -> None:
        super().__setitem__(place, part)
        with contextlib.suppress(threading.BrokenBarrierError):
            self._both.wait(MEET_S)


def test_two_threads_bring_the_last_two_pieces_of_a_message(
    nuc: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line breaks and Zenoh brings the rest. Both threads had the last piece: one of them failed, and if
    that was the door's, another connection was closed."""
    made, both = pieces.Pieces.__init__, threading.Barrier(2)

    def make(self: pieces.Pieces, first: Header) -> None:
        made(self, first)
        self._parts = Meeting(both)

    monkeypatch.setattr(pieces.Pieces, "__init__", make)
    parts = [header("one", 1 + piece, piece=piece, pieces=2) for piece in range(2)]
    with ThreadPoolExecutor(2) as threads:
        taken = [threads.submit(nuc._take, part, bytes(5)) for part in parts]
        for each in taken:
            each.result(30.0)
    assert nuc.mailbox.take(parts[0].key, 30.0, str).payload == bytes(10)
    assert not nuc.counts["doubled"]


def test_a_run_ends_while_another_thread_opens_a_channel(
    nuc: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prober answered while the channels were closed, and the command that ended the run failed: the node
    stayed busy for ever."""
    stop = Channel.stop

    def stop_and_open(self: Channel) -> None:
        stop(self)
        with contextlib.suppress(WeftError):
            nuc._channel("cloud")

    monkeypatch.setattr(Channel, "stop", stop_and_open)
    nuc.end()
    assert not nuc._channels
    with pytest.raises(WeftError, match="no run"):
        nuc._channel("cloud")


def test_two_threads_that_open_a_channel_get_the_same_one(
    nuc: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two was forgotten: its thread never ended, and both sent to the same neighbour."""
    data = fabrics.topics.data
    quicker: list[Channel] = []

    def while_another_opens(*names: str) -> str:
        monkeypatch.setattr(fabrics.topics, "data", data)
        quicker.append(nuc._channel("cloud"))
        return data(*names)

    monkeypatch.setattr(fabrics.topics, "data", while_another_opens)
    assert nuc._channel("cloud") is quicker[0]
    assert nuc._channels["cloud"] is quicker[0]


class Told(Line):
    """A line that only says what is done with it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def send(self, header: bytes, views: Any) -> bytes:
        self._log.append(f"{self._name} sends")
        return b""

    def close(self) -> None:
        self._log.append(f"{self._name} is closed")


def test_of_two_lines_to_one_neighbour_the_first_is_kept(
    nuc: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prober and the thread that prepares a run may both open one. The second one took the place of the
    first: the rest of a message was written on a line that had not its beginning."""
    log: list[str] = []

    def slow(self: LineOpener, names: Any) -> dict[str, Line | WeftError]:
        monkeypatch.setattr(LineOpener, "open", lambda *_: {"pi": Told("first", log)})
        nuc._open_lines(["pi"])
        return {"pi": Told("second", log)}

    monkeypatch.setattr(LineOpener, "open", slow)
    nuc.open_line("pi")
    for step in range(2):
        nuc.send(Header("one", 0, step, "act", 2, 1, "nuc", "pi", 10), bytes(10))
    nuc.end()
    assert log == ["second is closed", "first sends", "first sends", "first is closed"]
