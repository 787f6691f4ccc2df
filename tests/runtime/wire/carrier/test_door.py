"""Whatever a connection says, the door goes on serving the others, takes no memory for strangers, and leaves
nothing behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import random
import resource
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from weft.runtime.wire.carrier import door as doors
from weft.runtime.wire.carrier.door import Door, Receiver
from weft.runtime.wire.carrier.line import Line, LineLost, connect
from weft.runtime.wire.carrier.records import LENGTHS, Sealer, connection_key
from weft.runtime.wire.carrier.tickets import GREETING_BYTES, MAC_BYTES, Ticket, greeting
from weft.runtime.wire.frames import (
    MAX_HEADER,
    MAX_PAYLOAD,
    Buffer,
    Header,
    pack_header,
    unpack_header,
)

RUN_KEY = b"k" * 32
WAIT_S = 30.0


class Host:
    """A door and what came through it."""

    def __init__(self, encrypted: bool = False, room: int = 1 << 22) -> None:
        self.counts: Counter[str] = Counter()
        self.came: queue.SimpleQueue[tuple[Header, bytes]] = queue.SimpleQueue()
        receiver = Receiver(self._admit, self._take, self._note, lambda: room)
        self.door = Door(["127.0.0.1"], receiver, encrypted)
        self.door.run_key = RUN_KEY
        self.devices = itertools.count()

    def _admit(self, packed: bytes, size: int) -> Header | None:
        header = unpack_header(packed)
        return header if header.run == "run" and header.bytes == size else None

    def _take(self, header: Header, payload: Buffer) -> None:
        self.came.put((header, bytes(payload)))

    def _note(self, what: str) -> None:
        self.counts[what] += 1

    @property
    def port(self) -> int:
        return self.door.ports[0][1]

    def ticket(self) -> Ticket:
        return self.ticket_of(f"device{next(self.devices)}")

    def ticket_of(self, device: str) -> Ticket:
        given = self.door.tickets.give(device)
        return Ticket("", self.door.ports, given.id, given.secret, self.door.encrypted)

    def line(self, device: str = "") -> Line:
        ticket = self.ticket_of(device) if device else self.ticket()
        return connect("127.0.0.1", self.port, ticket, RUN_KEY)

    def still_works(self, step: int = 99) -> bool:
        line = self.line()
        send(line, step, b"still", kind="last")
        while (came := self.came.get(timeout=WAIT_S))[0].kind != "last":
            pass
        line.close()
        return came[0].step == step and came[1] == b"still"


@pytest.fixture(params=[False, True], ids=["clear", "encrypted"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    host = Host(encrypted=request.param)
    yield host
    host.door.close()


def send(line: Line, step: int, payload: bytes, run: str = "run", kind: str = "act") -> None:
    header = pack_header(Header(run, 0, step, kind, 0, 0, "pi", "nuc", len(payload)))
    rest = line.send(header, [payload])
    assert line.finish(rest, threading.Event())


def send_for_ever(line: Line) -> None:
    for step in itertools.count():
        send(line, step, bytes(10_000))


def test_messages_of_all_sizes_arrive_whole_and_in_order(host: Host) -> None:
    line = host.line()
    sizes = [0, 1, 3000, 4096, 5000, 100_000, 2_000_000, 7, 0, 64_000]
    for step, size in enumerate(sizes):
        send(line, step, os.urandom(1) * size)
        header, payload = host.came.get(timeout=WAIT_S)
        assert (header.step, len(payload), len(set(payload))) == (step, size, min(size, 1))
    for step in range(200):  # many in one read
        send(line, step, b"x" * (step % 50))
    for step in range(200):
        header, payload = host.came.get(timeout=WAIT_S)
        assert (header.step, len(payload)) == (step, step % 50)
    line.close()


def test_many_senders_at_once(host: Host) -> None:
    lines = [host.line() for _ in range(8)]

    def talk(number: int) -> None:
        for step in range(20):
            send(lines[number], 100 * number + step, bytes([number]) * 60_000)

    threads = [threading.Thread(target=talk, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    came = [host.came.get(timeout=WAIT_S) for _ in range(160)]
    for thread in threads:
        thread.join()
    assert {h.step for h, _ in came} == {100 * n + s for n in range(8) for s in range(20)}
    assert all(payload == bytes([h.step // 100]) * 60_000 for h, payload in came)
    for line in lines:
        line.close()


def test_an_unwanted_message_is_passed_over(host: Host) -> None:
    line = host.line()
    send(line, 1, bytes(300_000), run="another")
    send(line, 2, b"wanted")
    assert host.came.get(timeout=WAIT_S)[1] == b"wanted"
    line.close()


def test_a_connection_without_a_ticket_is_closed(host: Host) -> None:
    host.ticket()
    with socket.create_connection(("127.0.0.1", host.port), WAIT_S) as stranger:
        stranger.sendall(bytes(GREETING_BYTES))
        assert stranger.recv(1) == b""
    assert host.counts["bad"] == 1
    assert host.still_works()


def test_while_nobody_has_a_ticket_no_connection_is_kept(host: Host) -> None:
    """An idle node: a stranger could hold 512 of its descriptors for five seconds each."""
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", host.port), WAIT_S) as stranger:
            assert stranger.recv(1) == b""  # at once: nothing was sent
    assert host.counts["bad"] == 3
    assert not host.door._callers
    assert host.still_works()


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "GREETING_S", 0.0)
    monkeypatch.setattr(doors, "LOOK_S", 0.01)
    host = Host()
    host.ticket()
    with socket.create_connection(("127.0.0.1", host.port), WAIT_S) as stranger:
        assert stranger.recv(1) == b""
    host.door.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="this system has no such setting")
def test_an_idle_connection_is_looked_at_before_a_router_forgets_it() -> None:
    host = Host()
    line = host.line()
    assert host.still_works()
    for end in (line._socket, *(caller.connection for caller in host.door._callers)):
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < 60
    line.close()
    host.door.close()


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end has closed a connection. It does so with a reset if bytes were not read."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [0, 1, GREETING_BYTES - 1])
def test_silent_connections_make_room_for_one_with_a_ticket(
    monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """Seen: 512 of them kept out every device of the run for five seconds."""
    monkeypatch.setattr(doors, "MAX_CALLERS", 4)
    host = Host()
    with contextlib.ExitStack() as stack:
        ticket = host.ticket()
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", host.port), WAIT_S))
            for _ in range(6)
        ]
        for stranger in strangers:
            with contextlib.suppress(OSError):  # the first two are closed already
                stranger.sendall(greeting(ticket.id, ticket.secret)[:sent])
        assert is_closed(strangers[0])
        assert host.still_works()
        assert len(host.door._callers) <= 4
    host.door.close()


def test_too_many_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of devices are not closed to make room for others."""
    monkeypatch.setattr(doors, "MAX_CALLERS", 2)
    host = Host()
    lines = [host.line(), host.line()]
    with pytest.raises(LineLost, match="port"):
        host.line()
    for step, line in enumerate(lines):
        send(line, step, b"still here")
        assert host.came.get(timeout=WAIT_S)[0].step == step
        line.close()
    host.door.close()


def test_one_device_takes_only_its_part_of_the_connections(host: Host) -> None:
    """Seen: a member that took all 512 connections left none for the others."""
    other = host.line("other")
    lines = [host.line("greedy") for _ in range(doors.MAX_LINES + 3)]
    for _ in range(3):  # the oldest have gone
        with pytest.raises(LineLost):
            send_for_ever(lines.pop(0))
    assert len(host.door._callers) == doors.MAX_LINES + 1
    for step, line in enumerate([other, *lines]):
        send(line, step, b"here")
        assert host.came.get(timeout=WAIT_S)[0].step == step
        line.close()


def test_a_door_without_descriptors_goes_on_when_there_are_some_again(host: Host) -> None:
    """`accept` fails while a process has no descriptor left: no endless loop, no end of the thread."""
    line, _ = host.line(), host.ticket()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        caller = stack.enter_context(socket.socket())
        resource.setrlimit(resource.RLIMIT_NOFILE, (caller.fileno() + 1, before[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        with contextlib.suppress(OSError):
            while True:
                stack.enter_context(socket.socket())
        caller.connect(("127.0.0.1", host.port))
        send(line, 7, b"who is in is served all the same")
        assert host.came.get(timeout=WAIT_S)[0].step == 7
    assert host.still_works()
    line.close()


def test_a_connection_that_is_reset_at_once_harms_nobody(host: Host) -> None:
    for _ in range(200):
        host.ticket()
        attacker = socket.create_connection(("127.0.0.1", host.port), WAIT_S)
        attacker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        attacker.close()
    assert host.still_works()


def test_a_greeting_that_comes_byte_by_byte_is_understood(host: Host) -> None:
    ticket = host.ticket()
    with socket.create_connection(("127.0.0.1", host.port), WAIT_S) as slow:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in greeting(ticket.id, ticket.secret):
            slow.sendall(bytes([byte]))
        assert len(slow.recv(MAC_BYTES, socket.MSG_WAITALL)) == MAC_BYTES
    assert host.still_works()


def test_a_record_of_another_connection_cannot_be_sent_again() -> None:
    """A bad relay has seen what another device sent. It replays it on a line of its own, in any order."""
    host = Host(encrypted=True)
    victim, thief = host.ticket(), host.ticket()
    header = pack_header(Header("run", 0, 1, "act", 0, 0, "pi", "nuc", 4))
    records = [
        b"".join(map(bytes, sealer.record(header, [b"data"])))
        for sealer in (Sealer(connection_key(victim.secret, RUN_KEY)),) * 3
    ]
    for order in ((0,), (1, 0), (2,), (0, 0)):
        line = connect("127.0.0.1", host.port, thief, RUN_KEY)
        with contextlib.suppress(OSError):
            for place in order:
                line._socket.sendall(records[place])
            line._socket.setblocking(True)
            assert line._socket.recv(1) == b""  # the door has closed it
        line.close()
        thief = host.ticket()
    assert host.came.empty()
    line = connect("127.0.0.1", host.port, victim, RUN_KEY)
    line._socket.setblocking(True)
    line._socket.sendall(records[0] + records[2])  # one is left out: the numbers do not fit
    assert line._socket.recv(1) == b""
    assert host.came.get(timeout=WAIT_S)[0].step == 1
    assert host.came.empty()
    line.close()
    host.door.close()


@pytest.mark.parametrize(
    "lengths", [(0, 0), (0, MAX_PAYLOAD), (MAX_HEADER, 0), (2**32 - 1, 2**32 - 1)]
)
def test_odd_lengths_take_no_memory(host: Host, lengths: tuple[int, int]) -> None:
    ticket = host.ticket()
    before = memory()
    with socket.create_connection(("127.0.0.1", host.port), WAIT_S) as attacker:
        attacker.sendall(greeting(ticket.id, ticket.secret))
        assert len(attacker.recv(MAC_BYTES, socket.MSG_WAITALL)) == MAC_BYTES
        with contextlib.suppress(OSError):
            attacker.sendall(LENGTHS.pack(*lengths) + bytes(4000))
        assert host.still_works()
        assert memory() - before < 32 << 20
    assert host.still_works()


def memory() -> int:
    with open("/proc/self/status") as status:
        return int(status.read().split("VmRSS:")[1].split()[0]) * 1024


def test_no_memory_is_taken_for_more_than_there_is_room(host: Host) -> None:
    line = host.line()
    with contextlib.suppress(
        LineLost
    ):  # the door closes the connection when it has read the header
        send(line, 1, bytes(5 << 20))
    line.close()
    assert host.still_works()
    assert host.counts["bad"] == 1


@pytest.mark.parametrize("seed", range(6))
def test_noise_after_a_greeting_ends_only_its_own_connection(host: Host, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        ticket = host.ticket()
        with socket.create_connection(("127.0.0.1", host.port), WAIT_S) as attacker:
            attacker.sendall(greeting(ticket.id, ticket.secret))
            assert len(attacker.recv(MAC_BYTES, socket.MSG_WAITALL)) == MAC_BYTES
            lengths = draw.choice(
                [draw.randbytes(8), LENGTHS.pack(draw.randrange(3000), draw.randrange(MAX_PAYLOAD))]
            )
            with contextlib.suppress(OSError):
                attacker.sendall(lengths + draw.randbytes(draw.randrange(5000)))
    assert host.still_works()


def test_a_run_that_ends_closes_its_connections(host: Host) -> None:
    line, ticket = host.line(), host.ticket()
    host.door.hang_up()
    with pytest.raises(LineLost):
        send_for_ever(line)
    with pytest.raises(LineLost):  # its tickets do not count any more
        connect("127.0.0.1", host.port, ticket, RUN_KEY)
    assert host.still_works()


def test_nothing_is_left_behind() -> None:
    before, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    host = Host()
    line = host.line()
    send(line, 1, b"x")
    line.close()
    host.door.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads
    with pytest.raises(LineLost, match="refused"):
        connect("127.0.0.1", host.port, host.ticket(), RUN_KEY)


def test_a_process_at_the_same_port_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            connection.sendall(bytes(MAC_BYTES))
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        ticket = Ticket("", (), bytes(16), bytes(32), False)
        with pytest.raises(LineLost, match="another process"):
            connect("127.0.0.1", other.getsockname()[1], ticket, RUN_KEY)
        thread.join()


def test_a_door_whose_thread_has_left_already_can_be_closed(host: Host) -> None:
    """The thread may be awake when the door is closed: then it leaves before it is told to."""
    host.door._leave = True
    with socket.create_connection(("127.0.0.1", host.port)):  # something that wakes it up
        host.door._thread.join(WAIT_S)
    assert not host.door._thread.is_alive()
    host.door.close()
