"""The sending end of a connection for tensors.

    line = connect(host, port, ticket, run_key)
    rest = line.send(header, views)       # at once, as far as the kernel takes it
    if rest: line.finish(rest, stopped)   # in a thread that may wait

What has been given to the kernel is not copied. The rest is: its tensors may change when `send` has returned.
"""

from __future__ import annotations

import contextlib
import hmac
import select
import socket
import threading
import time
from collections.abc import Sequence

from weft.errors import WeftError
from weft.runtime.wire.carrier.records import Sealer, connection_key
from weft.runtime.wire.carrier.sockets import set_up
from weft.runtime.wire.carrier.tickets import MAC_BYTES, Ticket, greeting, welcome
from weft.runtime.wire.frames import Buffer

CONNECT_S = 1.0  # for a connection and its welcome
AT_ONCE_S = 0.001  # that `send` may wait for the kernel
LOOK_S = 0.1  # between two looks whether a run has ended
MAX_BUFFERS = 64  # of one call; the kernel takes 1024


class LineLost(WeftError):
    """The connection is gone."""


class Line:
    """A connection to one neighbour. One thread at a time may send."""

    def __init__(self, connection: socket.socket, sealer: Sealer) -> None:
        self._socket, self._sealer = connection, sealer
        connection.setblocking(False)
        self._room = select.poll()
        self._room.register(connection, select.POLLOUT)

    def send(self, header: bytes, views: Sequence[Buffer]) -> bytes:
        """Sends a message. The answer is what the kernel had no room for; LineLost if nobody listens."""
        buffers = self._sealer.record(header, views)
        if len(buffers) > MAX_BUFFERS:
            buffers = [buffers[0], b"".join(buffers[1:])]
        until = time.monotonic() + AT_ONCE_S
        while True:
            buffers = _after(buffers, self._written(buffers))
            if not buffers:
                return b""
            left = until - time.monotonic()
            if left <= 0 or not self._room.poll(left * 1e3):
                return b"".join(buffers)

    def finish(self, rest: bytes, stopped: threading.Event) -> bool:
        """Waits until the rest has been sent. False if the run ends first."""
        view = memoryview(rest)
        while view:
            if stopped.is_set():
                return False
            if self._room.poll(LOOK_S * 1e3):
                view = view[self._written([view]) :]
        return True

    def close(self) -> None:
        self._socket.close()

    def _written(self, buffers: Sequence[Buffer]) -> int:
        try:
            return self._socket.sendmsg(buffers)
        except BlockingIOError:
            return 0
        except (OSError, ValueError) as error:
            raise LineLost(getattr(error, "strerror", None) or str(error)) from None


def connect(host: str, port: int, ticket: Ticket, run_key: bytes) -> Line:
    """A line to a door. LineLost, with the reason, where there is none within a second."""
    until = time.monotonic() + CONNECT_S
    connection: socket.socket | None = None
    try:
        connection = socket.create_connection((host, port), CONNECT_S)
        set_up(connection)
        connection.settimeout(max(0.01, until - time.monotonic()))
        connection.sendall(greeting(ticket.id, ticket.secret))
        answer = b""
        while len(answer) < MAC_BYTES:
            came = connection.recv(MAC_BYTES - len(answer))
            if not came:
                raise LineLost("it closed the connection")
            answer += came
        if not hmac.compare_digest(answer, welcome(ticket.id, ticket.secret)):
            raise LineLost("another process answered there")
    except (OSError, LineLost) as error:
        with contextlib.suppress(OSError):
            if connection is not None:
                connection.close()
        why = f"{host} port {port}: {getattr(error, 'strerror', None) or error}"
        raise LineLost(why) from None
    key = connection_key(ticket.secret, run_key) if ticket.encrypted else b""
    return Line(connection, Sealer(key))


def _after(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """The buffers without their first bytes."""
    rest: list[Buffer] = []
    for buffer in buffers:
        size = len(buffer)
        if written >= size:
            written -= size
        else:
            rest.append(memoryview(buffer)[written:] if written else buffer)
            written = 0
    return rest
