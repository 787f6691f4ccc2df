"""The receiving end of all connections of a node: its ports, and one thread that reads from everybody.

    door = Door(hosts, Receiver(admit, take, count), encrypted=False)
    given = door.tickets.give("pi")                # for a device that may connect
    door.hang_up()                                 # at the end of a run

Nothing that comes is trusted. While nobody has a ticket, each connection is closed at once. A connection that
shows no ticket is closed after a while, or sooner if others come. A header is judged before memory is taken
for its payload, and all payloads that are on their way together have a limit.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from weft.errors import WeftError
from weft.runtime.wire.carrier.caller import Caller, Gone
from weft.runtime.wire.carrier.pool import Pool
from weft.runtime.wire.carrier.records import Opener, connection_key
from weft.runtime.wire.carrier.sockets import set_up
from weft.runtime.wire.carrier.tickets import Tickets, welcome
from weft.runtime.wire.closing import Closing
from weft.runtime.wire.frames import BadMessage, Buffer, Header
from weft.runtime.wire.limits import Seldom

log = logging.getLogger("weft.carrier")

MAX_CALLERS = 512  # connections at a time
MAX_LINES = 4  # of these from one device: a line that broke may still be open here
PAUSE_S = 0.01  # when this process has no file descriptor left
GREETING_S = 5.0  # in which a new connection must show its ticket
LOOK_S = 1.0  # between two looks for connections that show none


class Receiver(NamedTuple):
    """What a node does with messages."""

    admit: Callable[[bytes, int], Header | None]  # the header, if the message may be received
    take: Callable[[Header, Buffer], None]
    note: Callable[[str], None]  # counts what was wrong
    room: Callable[[], int]  # bytes that may be on their way at a time


class Door(Closing):
    """Listens at every host. WeftError where a port cannot be opened."""

    def __init__(
        self, hosts: Sequence[str], receiver: Receiver, encrypted: bool, session: str = ""
    ) -> None:
        self.tickets = Tickets()
        self.encrypted = encrypted
        self.session = session  # of Zenoh, which shows others this node's address
        self.run_key = b""
        self._receiver = receiver
        self._log = Seldom(log)
        self._pool = Pool()
        self._selector = selectors.DefaultSelector()
        self._callers: set[Caller] = set()
        self._listeners: list[socket.socket] = []
        self._leave = False
        self._runs = 0  # that have ended
        self._wakes, self._wake = socket.socketpair()
        self._wakes.setblocking(False)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        try:
            for host in hosts:
                self._listen(host)
        except OSError as error:
            self._close_all()
            self._wake.close()
            raise WeftError(f"cannot listen for tensors on {host}: {error.strerror}") from None
        self.ports = tuple(
            (host, int(listener.getsockname()[1]))
            for host, listener in zip(hosts, self._listeners, strict=True)
        )
        self._thread = threading.Thread(target=self._run, name="tensors", daemon=True)
        self._thread.start()

    def hang_up(self) -> None:
        """Closes the connections of the run before, and forgets their tickets."""
        self.tickets.clear()
        self._runs += 1
        self._wake.send(b"\0")

    def close(self) -> None:
        self._leave = True
        with contextlib.suppress(OSError):  # the thread may have left already
            self._wake.send(b"\0")
        self._thread.join(timeout=5.0)
        self._wake.close()

    def _listen(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        self._listeners.append(listener)
        if host == "::" and socket.has_dualstack_ipv6():
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, 0))
        listener.listen(64)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def _run(self) -> None:
        look = time.monotonic() + LOOK_S
        while not self._leave:
            # Only strangers need a look: who has shown a ticket may be silent for as long as the run lasts.
            waits = any(not caller.known for caller in self._callers)
            for key, _ in self._selector.select(LOOK_S if waits else None):
                if key.fileobj is self._wakes:
                    self._woken()
                elif isinstance(key.data, Caller):
                    self._read(key.data)
                elif isinstance(key.fileobj, socket.socket):
                    self._answer(key.fileobj)
            if waits and time.monotonic() > look:
                look = time.monotonic() + LOOK_S
                self._drop_strangers()
        self._close_all()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakes.recv(4096)
        ended = [caller for caller in self._callers if caller.run < self._runs]
        self._pool.clear()
        for caller in ended:
            self._drop(caller)

    def _answer(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # it is gone already, or this process has no file descriptor left
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room():
                time.sleep(PAUSE_S)
            return
        full = len(self._callers) >= MAX_CALLERS
        if not self.tickets.expects_somebody or (full and not self._make_room()):
            connection.close()
            self._receiver.note("bad")
            return
        caller = Caller(connection, self._greeted, self._pool, self._runs)
        try:
            connection.setblocking(False)
            set_up(connection)
            self._selector.register(connection, selectors.EVENT_READ, caller)
        except OSError:  # some systems say so when it is gone already
            connection.close()
            return
        self._callers.add(caller)

    def _make_room(self) -> bool:
        """Closes the connection that has kept silent longest, if there is one without a ticket. Who has a
        ticket shows it at once."""
        strangers = [caller for caller in self._callers if not caller.known]
        if strangers:
            self._receiver.note("bad")
            self._drop(min(strangers, key=lambda caller: caller.since))
        return bool(strangers)

    def _greeted(self, caller: Caller, data: bytes) -> Opener:
        """Checks the ticket of a connection, and answers."""
        given = self.tickets.take(data)
        lines = [c for c in self._callers if c.known and c.source == given.source]
        if len(lines) >= MAX_LINES:
            self._drop(min(lines, key=lambda caller: caller.since))
        caller.source = given.source
        with contextlib.suppress(OSError):  # a caller that has left is noticed when it is read
            caller.connection.send(welcome(given.id, given.secret))
        return Opener(connection_key(given.secret, self.run_key) if self.encrypted else b"")

    def _read(self, caller: Caller) -> None:
        if caller not in self._callers:  # it was closed a moment ago
            return
        receiver = self._receiver
        try:
            caller.read(receiver.admit, receiver.take, self._fits)
        except Gone:
            self._drop(caller)
        except BadMessage as error:
            receiver.note("bad")
            self._log.warning("a connection for tensors was closed: %s", error)
            self._drop(caller)
        except Exception as error:  # the thread serves everybody: one message must not end it
            receiver.note("bad")
            self._log.warning("a connection for tensors was closed after an error: %r", error)
            self._drop(caller)

    def _fits(self, size: int) -> bool:
        coming = sum(caller.expects for caller in self._callers)
        return coming + size <= self._receiver.room()

    def _drop_strangers(self) -> None:
        late = time.monotonic() - GREETING_S
        for caller in list(self._callers):
            if not caller.known and caller.since < late:
                self._receiver.note("bad")
                self._drop(caller)

    def _drop(self, caller: Caller) -> None:
        self._callers.discard(caller)
        self._selector.unregister(caller.connection)
        caller.connection.close()

    def _close_all(self) -> None:
        for caller in list(self._callers):
            self._drop(caller)
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        self._wakes.close()
