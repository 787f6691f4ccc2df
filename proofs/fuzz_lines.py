"""The part of the fuzzing that goes to a node's port for tensors: greetings and records with something wrong.

lines = Lines(session, group, run, key)      # as the device "pi" of the run
lines.send(record)                           # on a line with a ticket, as long as it lasts
lines.greet(bytes)                           # on a connection of its own
lines.new_run()                              # the node got a job again
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from weft.errors import WeftError
from weft.runtime.wire.carrier.line import Line
from weft.runtime.wire.carrier.opening import LineOpener
from weft.runtime.wire.carrier.records import LENGTHS

SENDER = "pi"
SEND_S = 5.0


class Lines:
    """Connections of one device of the run that has turned bad."""

    def __init__(self, session: Any, group: str, run: str, key: bytes) -> None:
        self._opener = LineOpener(session, group, SENDER, run, key)
        self._line: Line | None = None
        self._refused = False  # until the next run
        self._where: tuple[str, int] | None = None
        self.opened = 0

    def new_run(self) -> None:
        self._lose()
        self._refused = False

    def send(self, data: bytes) -> None:
        """Any bytes, as the next record of a line."""
        if self._line is None and not self._refused:
            try:
                self._line = self._opener.one("v1")
            except WeftError:  # a message before this one has ended the run
                self._refused = True
                return
            self._line._socket.settimeout(SEND_S)
            self._where = self._line._socket.getpeername()[:2]
            self.opened += 1
        if self._line is not None:
            try:
                self._line._socket.sendall(data)
            except OSError:  # the node has closed it, as it should
                self._lose()

    def greet(self, data: bytes) -> None:
        """Any bytes, as the first ones of a connection."""
        if self._where is not None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(self._where, SEND_S) as made,
            ):
                made.sendall(data)

    def _lose(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


def record(header: bytes, payload: bytes) -> bytes:
    """A record in clear."""
    return LENGTHS.pack(len(header), len(payload)) + header + payload
