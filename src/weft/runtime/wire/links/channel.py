"""One outgoing channel of a device: a queue and the thread that empties it.

Every channel has its own thread, so that sending overlaps with computing and a slow link delays only its own
messages. The thread begins with the first message that has to wait: in a mesh of many devices most channels
never carry one. If links are emulated, the thread waits until the message has "left" before it hands it over
(`carrier.way_out`). Latency is added at the receiver.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from weft.runtime.wire.carrier.line import Line
from weft.runtime.wire.carrier.way_out import WayOut
from weft.runtime.wire.frames import HEADER_BYTES, Buffer, Header, Payload, pack_header, whole
from weft.runtime.wire.ledger import Ledger
from weft.runtime.wire.links.changes import Changes, ChangingLink
from weft.runtime.wire.links.shaping import Clock, OwnClock, SharedClock, clock_path, sleep_until
from weft.runtime.wire.links.trouble import Troubles

log = logging.getLogger("weft.fabric")

SLOW_S = 0.001  # a hand-over that takes longer means that the link is backed up
RETRY_S = 1.0
NEVER_S = 24 * 3600.0  # a message that a link would carry so late is dropped
LOOK_S = 0.01  # between two looks whether a link that is cut works again


# (when the message was ready, the message, when the medium carries it if that is known already)
_Item = tuple[float, Header, Buffer, tuple[float, float] | None]
_Look = tuple[()]  # no message: a rest is to be sent
_Rest = tuple[Header, Buffer, bytes]  # a message, and what its line had no room for


class OutLink(Struct, frozen=True, omit_defaults=True):
    """A channel from this device to one neighbour. Rate 0: as fast as the network allows."""

    neighbour: str
    channel: str
    bytes_per_s: float = 0.0
    latency_s: float = 0.0
    shared: str | None = None  # name of the medium's clock, if other devices also send on it


class Roads(Struct, frozen=True):
    """What a device needs to know about the network: its links, and the next hop to every destination."""

    links: tuple[OutLink, ...] = ()
    next_hop: dict[str, str] = {}  # final destination -> neighbour
    cut_through: bool = True  # relays pass on pieces when they arrive, not whole messages


class Channel:
    """A queue and its thread. The neighbour listens on `key`; `droppable` says which messages may get
    lost; `seal` makes the bytes of a header."""

    def __init__(
        self,
        session: Any,
        key: str,
        link: OutLink,
        ledger: Ledger,
        droppable: Callable[[Header], bool],
        seal: Callable[[Header], bytes] = pack_header,
        *,
        record: bool = False,
        changes: Changes | None = None,
        scratch: Path | None = None,  # the node's folder for clocks of shared media
        troubles: Troubles | None = None,  # links of an emulated fleet can be cut
    ) -> None:
        self.link = link
        self._troubles = troubles or Troubles(None, ledger.device)
        self._changing: ChangingLink | None = None
        if changes is not None and link.channel in changes.links and link.bytes_per_s:
            self._changing = ChangingLink(changes.links[link.channel], changes.start)
        self._ledger, self._record = ledger, record
        self.way = WayOut(session, key, link.neighbour, ledger, droppable, seal)
        self._turn = threading.Lock()  # one message at a time leaves
        # The end of a message that its line had no room for. It leaves before anything else; who has the turn
        # reads and writes it.
        self._rest: _Rest | None = None
        self._queue: queue.SimpleQueue[_Item | _Look | None] = queue.SimpleQueue()
        self._clock: Clock = OwnClock()
        if link.shared is not None:
            self._clock = SharedClock(clock_path(scratch, link.shared))
        self._stopped = threading.Event()
        self._waiting: Counter[tuple[str, int, int, int]] = Counter()  # messages in the queue
        self._guard = threading.Lock()
        # Bytes in the queue, and of the message that the thread has taken out and not sent yet: no later
        # message may overtake that one.
        self.backlog = 0
        self.relayed = 0  # of these, bytes that came from the network
        self._slow_until = 0.0
        self._thread: threading.Thread | None = None
        self._ended = False

    def waits(self, header: Header) -> bool:
        """Whether a message of this name is still in the queue, of any minibatch."""
        return self._waiting[_name(header)] > 0

    def put(self, header: Header, payload: Payload) -> None:
        """Hands a message to the channel. It is sent at once if the link is free. When this returns, the
        tensors of the payload may change."""
        now = time.monotonic()
        queue_it = (
            self.link.bytes_per_s
            or self.link.latency_s
            or now < self._slow_until
            or header.pieces > 1  # pieces stay in order
            or header.source
            != self._ledger.device  # relayed: Zenoh's receiving thread must not wait
            or self.backlog
            or self.way.is_to_be_opened(now)
            or self._troubles.cut_until(self.link.neighbour) > now
            or not self._takes_turn()
        )
        if queue_it:
            payload = whole(payload)
            self._waiting[_name(header)] += 1
            self._count(header, len(payload) + HEADER_BYTES)
            booked = None
            if self.link.shared is not None and self.link.bytes_per_s and header.due <= now:
                # A medium carries messages in the order in which they are ready, for all receivers.
                booked = self._book(now, len(payload))
            self._wait_in_line((now, header, payload, booked))
            return
        try:
            self._publish(header, payload, now)
            # If the link is backed up, the thread waits. A line says so; Zenoh only takes its time.
            if self._rest or (not self.way.has_line and time.monotonic() - now > SLOW_S):
                self._slow_until = now + RETRY_S
            if self._rest:
                self._wait_in_line(())
        finally:
            self._turn.release()

    def _takes_turn(self) -> bool:
        """Takes the turn, unless another message is leaving or has to leave first."""
        if not self._turn.acquire(blocking=False):
            return False
        if self._rest is None and not self.backlog:
            return True
        self._turn.release()
        return False

    def _wait_in_line(self, item: _Item | _Look) -> None:
        """Puts a message into the queue, and sees to it that somebody empties the queue."""
        self._queue.put(item)
        if self._thread is None:
            with self._guard:
                if self._thread is None and not self._ended:
                    self._thread = threading.Thread(
                        target=self._run, name=f"channel {self.link.channel}", daemon=True
                    )
                    self._thread.start()

    def settle(self, seconds: float) -> None:
        """Waits until a message that is just being handed over is in the ledger. Its receiver may have it,
        and may have answered, before this device has noted that it was sent."""
        if self._turn.acquire(timeout=seconds):
            self._turn.release()

    def take_line(self, line: Line, reopen: Callable[[], Line]) -> None:
        """From now on messages leave on this line. It is closed where there is one already: two threads may
        have opened one, and the rest of a message belongs on the line that has its beginning."""
        with self._turn:
            if self._ended or self.way.has_line:
                line.close()
            else:
                self.way.use(line, reopen)

    def stop(self) -> None:
        self._stopped.set()
        with self._guard:
            if self._ended:
                return
            self._ended = True
            thread = self._thread
        if thread is None:
            with self._turn:
                self.way.close()
            return
        self._queue.put(None)
        thread.join(timeout=5.0)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None and not self._stopped.is_set():
            try:
                self._leave(item)
            except (
                Exception
            ) as error:  # the thread has more to send; who waits for this has a deadline
                self._ledger.counts["bad"] += 1
                log.warning("%s: a message was lost: %r", self.link.channel, error)
            finally:
                if item:
                    _, header, payload, _ = item
                    self._waiting[_name(header)] -= 1
                    self._count(header, -len(payload) - HEADER_BYTES)
            if item and not self.link.bytes_per_s and not self.backlog:
                self._slow_until = 0.0  # the queue is empty: the link keeps up again
        with self._turn:
            self.way.close()

    def _leave(self, item: _Item | _Look) -> None:
        """Sends what the thread has taken out of the queue, when its link has carried it."""
        if not item:
            with self._turn:
                self._finish()
            return
        ready, header, payload, booked = item
        # A relayed message is ready when its emulated latency is over, not when it arrived.
        ready = max(ready, header.due)
        start = end = ready
        if self.link.bytes_per_s:
            if booked is None:
                if not self._wait(header.due):  # book in the order of readiness
                    return
                booked = self._book(ready, len(payload))
            start, end = booked
            if not self._wait(end):
                return
        if not self._wait_for_link():
            return
        latency = self._changing.latency(end) if self._changing else self.link.latency_s
        due = end + latency if latency else 0.0
        if due or header.due:
            header = msgspec.structs.replace(header, due=due)
        if not self.link.bytes_per_s:
            # The kernel's link takes its own time; only the hand-over is seen here.
            start = time.monotonic()
        with self._turn:
            self._finish()
            self.way.open_again()
            self._publish(header, payload, start, end if self.link.bytes_per_s else None)
            self._finish()

    def _count(self, header: Header, size: int) -> None:
        with self._guard:
            self.backlog += size
            if header.source != self._ledger.device:
                self.relayed += size

    def _book(self, ready: float, size: int) -> tuple[float, float]:
        if self._changing is not None:
            with self._guard:  # on a medium those who send book too
                return self._changing.book(ready, size)
        return self._clock.book(ready, size / self.link.bytes_per_s)

    def _wait(self, end: float) -> bool:
        """Waits until a message has left. False if it never will, or if the run ends first."""
        if end - time.monotonic() > NEVER_S:
            self._ledger.counts["unreachable"] += 1
            return False
        if self._stopped.wait(max(0.0, end - time.monotonic() - 0.001)):
            return False
        sleep_until(end)
        return True

    def _wait_for_link(self) -> bool:
        """Waits while the link is cut. False if the run ends first."""
        while self._troubles.cut_until(self.link.neighbour) > time.monotonic():
            if self._stopped.wait(LOOK_S):
                return False
        return True

    def _publish(
        self, header: Header, payload: Payload, start: float, end: float | None = None
    ) -> None:
        """Sends a message, or the beginning of it. Who calls it has the turn, and there is no rest."""
        rest = self.way.send(header, payload)
        self._rest = (header, whole(payload), rest) if rest else None
        self._ledger.counts["sent"] += 1
        # The notice of a loss is no message of the emulated network.
        if self._record and not header.lost:
            label = f"{header.kind}{header.at}>{header.dest}"
            end = time.monotonic() if end is None else end
            self._ledger.transfers.add(
                self.link.channel, "transfer", start, end, header.step, header.micro, label, len(payload)
            )  # fmt: skip

    def _finish(self) -> None:
        """Sends the rest of a message, if there is one. Who calls it has the turn."""
        rest, self._rest = self._rest, None
        if rest is not None:
            self.way.finish(*rest, self._stopped)


def _name(header: Header) -> tuple[str, int, int, int]:
    return header.kind, header.at, header.micro, header.part
