"""One connection that a node receives tensors on: a greeting, then messages."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from weft.runtime.wire.carrier.pool import Pool
from weft.runtime.wire.carrier.records import LENGTHS, Opener, lengths_of
from weft.runtime.wire.carrier.tickets import GREETING_BYTES
from weft.runtime.wire.frames import BadMessage, Buffer, Header

FIRST_BYTES = 4096  # read at once: the lengths, the header, and the beginning of the payload
DROPPED_BYTES = 64 * 1024  # read at once of a payload that nobody wants

Admit = Callable[[bytes, int], Header | None]
Take = Callable[[Header, Buffer], None]


class Gone(Exception):
    """The other end has closed the connection."""


class Caller:
    """Reads a connection without ever waiting for it."""

    def __init__(
        self,
        connection: socket.socket,
        greeted: Callable[[Caller, bytes], Opener],
        pool: Pool,
        run: int,
    ) -> None:
        self.connection, self.run = connection, run  # the number of the run that it belongs to
        self.since = time.monotonic()
        self.source = ""  # the device whose ticket it has shown
        self._greeted, self._pool = greeted, pool
        self._opener: Opener | None = None
        self._first = bytearray(FIRST_BYTES)
        self._have = 0  # bytes in it
        self._header: Header | None = None
        self._payload: memoryview | None = None  # where the payload goes
        self._got = 0  # bytes of the payload
        self._drop = 0  # bytes of an unwanted payload that are still to come

    @property
    def known(self) -> bool:
        """Whether it has shown a ticket."""
        return self._opener is not None

    @property
    def expects(self) -> int:
        """Bytes of memory that the message on its way has taken."""
        return 0 if self._payload is None else len(self._payload)

    def read(self, admit: Admit, take: Take, fits: Callable[[int], bool]) -> None:
        """Reads what is there, once. Gone or BadMessage: the connection has to be closed."""
        if self._payload is not None:
            self._got += self._receive(self._payload[self._got :])
        elif self._drop:
            view = memoryview(bytearray(min(self._drop, DROPPED_BYTES)))
            self._drop -= self._receive(view)
        else:
            self._have += self._receive(memoryview(self._first)[self._have :])
            while self._next(admit, fits):
                self._finish(take)
            if self._payload is not None:  # the rest is probably here too
                self._got += self._receive(self._payload[self._got :])
        self._finish(take)

    def _receive(self, view: memoryview) -> int:
        try:
            count = self.connection.recv_into(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Gone(str(error)) from None
        if not count:
            raise Gone("the connection was closed")
        return count

    def _next(self, admit: Admit, fits: Callable[[int], bool]) -> bool:
        """Looks for a header in the first bytes, and makes room for its payload. False if it is not whole,
        or if more of the payload has to come."""
        if self._opener is None:
            if self._have < GREETING_BYTES:
                return False
            self._opener = self._greeted(self, bytes(self._first[:GREETING_BYTES]))
            self._shift(GREETING_BYTES)
        if self._have < LENGTHS.size:
            return False
        opener, lengths = self._opener, bytes(self._first[: LENGTHS.size])
        header_bytes, payload_bytes = lengths_of(lengths)
        begin = LENGTHS.size + header_bytes + opener.tag_bytes
        if self._have < begin:
            if begin > len(self._first):
                self._first.extend(bytes(begin - len(self._first)))
            return False
        packed = opener.header(memoryview(self._first)[LENGTHS.size : begin], lengths)
        self._header = admit(packed, payload_bytes)
        size = payload_bytes + opener.tag_bytes
        here = min(size, self._have - begin)
        if self._header is not None or opener.tag_bytes:
            # An encrypted payload is read even if nobody wants it: the numbers of its key go on.
            if not fits(size):
                raise BadMessage(f"no room for {size} bytes")
            self._payload, self._got = self._pool.take(size), here
            if here:
                self._payload[:here] = memoryview(self._first)[begin : begin + here]
        else:
            self._drop = size - here
        self._shift(begin + here)
        return here == size

    def _finish(self, take: Take) -> None:
        """Hands over the message if it is whole."""
        if self._payload is None or self._got < len(self._payload) or self._opener is None:
            return
        payload, header = self._payload, self._header
        self._payload = self._header = None
        opened = self._opener.payload(payload, self._pool)
        if header is not None:
            take(header, opened)

    def _shift(self, count: int) -> None:
        """Forgets the first bytes."""
        left = self._have - count
        self._first[:left] = self._first[count : self._have]
        self._have = left
