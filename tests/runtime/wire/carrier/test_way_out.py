"""Tensors leave on lines where there are lines, and through Zenoh where there are none. None is lost when a
line breaks before it is sent, and none is damaged when its tensor changes after it was sent."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch

from weft.runtime.node.probing.prober import Prober
from weft.runtime.wire import messages as msg
from weft.runtime.wire.carrier import way_out
from weft.runtime.wire.carrier.tickets import Ticket, ask, pack_ticket, unpack_question
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.frames import Header, Views, unpack_tensors, view_tensors
from weft.runtime.wire.links.channel import OutLink, Roads
from weft.runtime.wire.mailbox import Cancelled
from weft.runtime.wire.session import Endpoints, door_hosts, free_endpoint, open_session

KEY = b"k" * 32
WAIT_S = 30.0


class Pair:
    """Two fabrics; `pi` sends to `nuc`."""

    def __init__(self, door: bool = True, encrypted: bool = False) -> None:
        where = self.where = free_endpoint()
        ends = (Endpoints(listen=(where,)), Endpoints(listen=(free_endpoint(),), join=(where,)))
        self.sessions = [open_session(end) for end in ends]
        hosts = [door_hosts(end) for end in ends]
        group = "ways"
        self.nuc = Fabric(self.sessions[0], group, "nuc", None, hosts[0] if door else (), encrypted)
        self.pi = Fabric(self.sessions[1], group, "pi", None, hosts[1], encrypted)

    def begin(self, run: str = "run", key: bytes = KEY) -> None:
        self.nuc.begin(run, Roads(), record=False, key=KEY)
        self.pi.begin(run, Roads((OutLink("nuc", "pi>nuc"),)), record=False, key=key)
        self.pi.wait_for_neighbours(WAIT_S)

    def send(self, step: int, tensor: torch.Tensor, run: str = "run") -> None:
        specs, views = view_tensors({"x": tensor})
        payload = Views(views)
        self.pi.send(Header(run, 0, step, "act", 0, 0, "pi", "nuc", len(payload), specs), payload)

    def taken(self, step: int) -> torch.Tensor:
        letter = self.nuc.mailbox.take((0, step, "act", 0, 0, 0), WAIT_S, lambda: "a tensor")
        return unpack_tensors(letter.header, letter.payload)["x"]

    def close(self) -> None:
        for fabric in (self.pi, self.nuc):
            fabric.close()
        for session in self.sessions:
            session.close()


@pytest.fixture(params=[False, True], ids=["clear", "encrypted"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(encrypted=request.param)
    yield pair
    pair.close()


def test_a_tensor_may_change_when_it_was_sent(pair: Pair) -> None:
    pair.begin()
    assert pair.pi.counts["lines"] == 1
    tensor = torch.empty(400_000)
    for step in range(12):  # more than the kernel takes at once
        tensor.fill_(float(step))
        pair.send(step, tensor)
        tensor.fill_(-1.0)
    for step in range(12):
        assert bool((pair.taken(step) == float(step)).all())


def test_the_lines_of_a_run_end_with_it(pair: Pair) -> None:
    for run in ("first", "second"):
        pair.begin(run)
        pair.send(0, torch.ones(9), run)
        assert bool((pair.taken(0) == 1.0).all())
        assert pair.pi.counts["lines"] == 1
        assert pair.nuc.counts["bad"] == 0


def test_messages_are_measured_on_the_way_that_tensors_take(pair: Pair) -> None:
    reports: queue.SimpleQueue[msg.Report] = queue.SimpleQueue()
    probers = [Prober(f, reports.put, reports.put) for f in (pair.pi, pair.nuc)]
    pair.nuc.begin("run", Roads((OutLink("pi", "nuc>pi"),)), record=False, key=KEY)
    pair.pi.begin("run", Roads((OutLink("nuc", "pi>nuc"),)), record=False, key=KEY)
    exchange = msg.Exchange(100_000, WAIT_S, WAIT_S, WAIT_S, rounds=2)
    probers[0].ask(msg.ProbeServers("run", {"nuc": exchange}))
    told = reports.get(timeout=WAIT_S)
    assert isinstance(told, msg.ServerProbed)
    assert told.reached, told.why
    assert told.message_s > 0
    assert [f.counts["lines"] for f in (pair.pi, pair.nuc)] == [1, 1]  # there, and back
    for prober in probers:
        prober.close()


def test_a_node_without_a_door_gets_its_tensors_through_zenoh(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = Pair(door=False)
    with caplog.at_level(logging.WARNING, "weft.fabric"):
        pair.begin()
    assert "pi sends tensors to nuc through Zenoh" in caplog.text
    pair.send(0, torch.ones(9))
    assert bool((pair.taken(0) == 1.0).all())
    assert pair.pi.counts["without_line"] == 1
    assert not pair.pi.counts["lines"]
    pair.close()


def test_a_device_of_another_run_gets_no_line(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "weft.fabric"):
        pair.begin(key=b"l" * 32)
    assert "nuc does not take part in this run" in caplog.text
    assert pair.nuc.counts["foreign"] == 1
    assert not pair.pi.counts["lines"]


@pytest.mark.parametrize("key", [b"", b"l" * 32])
def test_a_stranger_s_ticket_leads_nobody_astray(key: bytes) -> None:
    """On an open network anybody may answer in nuc's name, and is as quick as nuc. Its ticket names a door of
    its own: it would get the tensors in clear."""
    pair = Pair()
    with open_session(Endpoints(join=(pair.where,), listen=(free_endpoint(),))) as stranger:
        asked: list[str] = []

        def lie(query: Any) -> None:
            with query:
                asked.append(str(query.key_expr))
                question = unpack_question(query.payload.to_bytes())
                made = Ticket(str(stranger.info.zid()), (("::", 9),), bytes(16), bytes(32), False)
                query.reply(query.key_expr, pack_ticket(made, question, "nuc", key))

        liar = stranger.declare_queryable("ways/door/nuc/*", lie, complete=True)
        while not asked:  # until pi's session knows of it
            for _ in pair.sessions[1].get("ways/door/nuc/pi", payload=ask("r", "pi", "nuc", b"")):
                pass
        asked.clear()
        pair.begin()
        assert pair.pi.counts["lines"] == 1
        pair.send(0, torch.ones(9))
        assert bool((pair.taken(0) == 1.0).all())
        liar.undeclare()
    pair.close()


def test_nothing_of_a_run_is_kept_after_it(pair: Pair) -> None:
    """Seen: letters that nobody had asked for were kept until the next run, up to 4 GiB of them."""
    pair.begin()
    for step in range(4):
        pair.send(step, torch.ones(100_000))
    pair.taken(3)
    assert pair.nuc.mailbox.bytes > 1_000_000
    assert pair.nuc._door is not None
    assert pair.nuc._door._pool.bytes > 0
    pair.nuc.mailbox.cancel("the run is over")
    pair.nuc.end()
    assert pair.nuc.mailbox.bytes == 0
    assert not pair.nuc.mailbox.has((0, 0, "act", 0, 0, 0))
    until(lambda: not pair.nuc._door._callers and not pair.nuc._door._pool.bytes)
    with pytest.raises(Cancelled):  # a thread that still wants something is told
        pair.nuc.mailbox.take((0, 9, "act", 0, 0, 0), WAIT_S, lambda: "a tensor")


def test_all_that_waits_here_has_one_limit(pair: Pair) -> None:
    """Seen: letters, pieces and messages to be passed on had a limit each, and each link its own."""
    pair.nuc._inbox = 1 << 20
    roads = Roads(tuple(OutLink(n, f"nuc>{n}", bytes_per_s=1.0) for n in ("x", "y")))
    pair.begin()
    pair.nuc.begin("run", roads, record=False, key=KEY)
    pair.pi.begin("run", Roads((OutLink("nuc", "pi>nuc"),)), record=False, key=KEY)
    sent = 0
    for dest in ("nuc", "x", "y"):
        for step in range(10):
            header = Header("run", 0, step, "act", 0, 0, "pi", dest, 150_000, pieces=1 + (step > 5))
            pair.nuc._take(msgspec.structs.replace(header, count=sent), bytes(150_000))
            sent += 1
    waits = pair.nuc.mailbox.bytes + sum(c.backlog for c in pair.nuc._channels.values())
    waits += pair.nuc._pieces.size
    assert waits <= 1 << 20
    assert pair.nuc.counts["bad"] == sent - waits // 150_000


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_line_that_breaks_is_opened_again(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(way_out, "REOPEN_S", (0.0,) * 1000)
    pair.begin()
    assert pair.nuc._door is not None
    step = 0
    with caplog.at_level(logging.WARNING, "weft.fabric"):
        pair.nuc._door.hang_up()
        while pair.pi.counts["lines"] < 2:  # what is sent meanwhile may be lost, as with Zenoh
            pair.send(step, torch.full((1000,), float(step)))
            step += 1
    assert "the connection to nuc broke" in caplog.text
    pair.send(step, torch.full((1000,), float(step)))
    assert bool((pair.taken(step) == float(step)).all())


def test_a_configuration_of_its_own_has_no_door() -> None:
    assert door_hosts(Endpoints(listen=("tcp/127.0.0.1:1",))) == ("127.0.0.1",)
    assert door_hosts(Endpoints(listen=("tcp/[::]:1", "tcp/0.0.0.0:2"))) == ("::", "0.0.0.0")
    assert door_hosts(Endpoints(config="zenoh.json5")) == ()
    assert door_hosts(Endpoints(listen=("quic/127.0.0.1:1",))) == ()
    assert door_hosts(Endpoints(asks_only=True)) == ()
