"""How a message of a channel leaves this device: on the channel's line, or through Zenoh.

    way = WayOut(session, key, "nuc", ledger, droppable, seal)
    way.use(line, reopen)                    # from now on on a line (`carrier`)
    rest = way.send(header, payload)         # what the line had no room for
    way.finish(header, payload, rest, stopped)

A message that may get lost leaves through Zenoh. So does every message while there is no line. A line that
breaks is opened again after some seconds; until then Zenoh carries the messages, and the log says so.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import zenoh

from weft.errors import WeftError
from weft.runtime.wire.carrier.line import Line, LineLost
from weft.runtime.wire.frames import Buffer, Header, Payload, Views, whole
from weft.runtime.wire.ledger import Ledger

log = logging.getLogger("weft.fabric")

REOPEN_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # after which a line that broke is opened again


class WayOut:
    """The neighbour listens on `key`. `droppable` says which messages may get lost; `seal` makes the bytes of
    a header. One thread at a time may send."""

    def __init__(
        self,
        session: Any,
        key: str,
        neighbour: str,
        ledger: Ledger,
        droppable: Callable[[Header], bool],
        seal: Callable[[Header], bytes],
    ) -> None:
        self._session, self._key, self._neighbour = session, key, neighbour
        self._ledger, self._droppable, self._seal = ledger, droppable, seal
        self._reliable = session.declare_publisher(
            key,
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
        )
        self._best_effort: Any = None  # a second publisher, made when it is needed
        self._line: Line | None = None
        self._reopen: Callable[[], Line] | None = None
        self._reopen_at = math.inf
        self._broken = 0  # times

    @property
    def heard(self) -> bool:
        """Whether the neighbour listens."""
        return bool(self._reliable.matching_status.matching)

    @property
    def has_line(self) -> bool:
        return self._line is not None

    def use(self, line: Line, reopen: Callable[[], Line]) -> None:
        """From now on messages leave on this line. `reopen` makes another one when it has broken."""
        self._line, self._reopen = line, reopen

    def is_to_be_opened(self, now: float) -> bool:
        """Whether a line that broke should be opened again now. This takes time: `open_again` does it."""
        return now > self._reopen_at

    def open_again(self) -> None:
        """Opens a line again, if its time has come."""
        if self._reopen is None or not self.is_to_be_opened(time.monotonic()):
            return
        try:
            self._line = self._reopen()
        except WeftError:
            self._wait_to_reopen()
            return
        self._reopen_at = math.inf
        self._ledger.counts["lines"] += 1

    def send(self, header: Header, payload: Payload) -> bytes:
        """Sends a message; the answer is what its line had no room for. The tensors may change then."""
        if self._line is not None and not self._droppable(header):
            parts = payload.parts if isinstance(payload, Views) else (payload,)
            try:
                return self._line.send(self._seal(header), parts)
            except LineLost as error:
                self._lose_line(error)
        self._put(header, whole(payload))
        return b""

    def finish(
        self, header: Header, payload: Buffer, rest: bytes, stopped: threading.Event
    ) -> None:
        """Sends the rest of a message when there is room; all of it through Zenoh if the line breaks."""
        if self._line is not None:
            try:
                self._line.finish(rest, stopped)
                return
            except LineLost as error:
                self._lose_line(error)
        self._put(header, payload)

    def close(self) -> None:
        self._reliable.undeclare()
        if self._best_effort is not None:
            self._best_effort.undeclare()
        if self._line is not None:
            self._line.close()
            self._line = None

    def _put(self, header: Header, payload: Buffer) -> None:
        publisher = self._reliable
        if self._droppable(header):
            if self._best_effort is None:
                self._best_effort = self._session.declare_publisher(
                    self._key,
                    congestion_control=zenoh.CongestionControl.DROP,
                    reliability=zenoh.Reliability.BEST_EFFORT,
                )
            publisher = self._best_effort
        publisher.put(bytes(payload), attachment=self._seal(header))

    def _lose_line(self, error: LineLost) -> None:
        """Zenoh carries the messages until the line is opened again."""
        if self._line is not None:
            self._line.close()
            self._line = None
        self._ledger.counts["lines_lost"] += 1
        log.warning(
            "%s: the connection to %s broke (%s); Zenoh carries its tensors now",
            self._ledger.device, self._neighbour, error,
        )  # fmt: skip
        self._wait_to_reopen()

    def _wait_to_reopen(self) -> None:
        self._reopen_at = math.inf
        if self._broken < len(REOPEN_S):
            self._reopen_at = time.monotonic() + REOPEN_S[self._broken]
        self._broken += 1
