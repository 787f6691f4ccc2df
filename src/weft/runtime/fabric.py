"""Carries tensors from device to device: over direct links, or relayed along a route.

    fabric = Fabric(session, "weft", "pi", links)
    fabric.send(header, payload)              # returns at once; the message leaves when its link is free
    fabric.mailbox.take(key, 30.0, lambda: "act3 from nuc")

Every outgoing channel has a thread of its own, so that sending overlaps with computing and a slow link
holds up only what goes over it. Where links are emulated the thread waits until the message has
"left" before it hands it to Zenoh; latency is added at the receiver.
"""

from __future__ import annotations

import itertools
import logging
import math
import queue
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import zenoh
from msgspec import Struct

from weft.errors import WeftError
from weft.program.timeline import Span
from weft.runtime.changes import Changes, ChangingLink
from weft.runtime.mailbox import Letter, Mailbox
from weft.runtime.radio import Transmitter
from weft.runtime.shaping import Clock, OwnClock, SharedClock, sleep_until
from weft.runtime.wire import BadMessage, Header, pack_header, unpack_header

log = logging.getLogger("weft.fabric")

PIECES = 32  # of a message that crosses several links: each relay passes on what it has
SMALLEST_PIECE = 16 * 1024
MAX_PARTIAL = 256  # messages of which some pieces are still missing


SLOW_S = 0.001  # a hand-over that takes longer means that the link is backed up
RETRY_S = 1.0
MAX_LATENCY = 10.0  # seconds that an emulated link may delay a message


class OutLink(Struct, frozen=True, omit_defaults=True):
    """A channel this device may send on, to one neighbour. Rate 0: as fast as the network allows."""

    neighbour: str
    channel: str
    bytes_per_s: float = 0.0
    latency_s: float = 0.0
    shared: str | None = None  # path of the medium's clock, where others send on it too


class Roads(Struct, frozen=True):
    """What a device needs to know of the network: its links, and the next hop to everyone."""

    links: tuple[OutLink, ...] = ()
    next_hop: dict[str, str] = {}  # final destination -> neighbour
    cut_through: bool = True  # relays pass on pieces as they come, not whole messages


class Fabric:
    """One device's end of the network."""

    def __init__(self, session: Any, group: str, name: str) -> None:
        self.session = session
        self.group = group
        self.name = name
        self.mailbox = Mailbox()
        self.counts: Counter[str] = Counter()  # bad, foreign, doubled, relayed, sent messages
        self.transfers: list[Span] = []  # messages' stays on channels, for the timeline
        self.run = ""
        self.begun = 0  # counts jobs: a probe that spans two of them says nothing
        self.probes: queue.SimpleQueue[Letter | None] = queue.SimpleQueue()
        self._probe_number = itertools.count()
        self.radio: Transmitter | None = None  # where a run's messages are best effort
        self._roads = Roads()
        self._channels: dict[str, _Channel] = {}
        self._pieces: dict[tuple[Any, ...], _Pieces] = {}
        # Called straight from Zenoh's receiving thread: it only checks and files the message.
        self._subscriber = session.declare_subscriber(
            self.data_key(name), zenoh.handlers.Callback(self._arrived, indirect=False)
        )

    def data_key(self, name: str) -> str:
        return f"{self.group}/data/{name}"

    def begin(self, run: str, roads: Roads, record: bool, changes: Changes | None = None) -> None:
        """Forgets what came before and takes the roads of a new run."""
        self.end()
        self.run, self._roads = run, roads
        self.begun += 1
        self.mailbox.clear()
        self.transfers = []
        self.counts.clear()
        for link in roads.links:
            self._channels[link.neighbour] = _Channel(self, link, record, changes)

    def wait_for_neighbours(self, seconds: float) -> None:
        """Returns when every neighbour of this run listens; WeftError names those that do not."""
        deadline = time.monotonic() + seconds
        missing = list(self._channels.values())
        while missing := [c for c in missing if not c.heard]:
            if time.monotonic() > deadline:
                names = ", ".join(c.link.neighbour for c in missing)
                raise WeftError(
                    f"{self.name} cannot reach {names} (tried for {seconds:g} s); "
                    "do they run, and can these machines open connections to each other?"
                )
            time.sleep(0.01)

    def end(self) -> None:
        self.run = ""
        self.radio = None
        for channel in self._channels.values():
            channel.stop()
        self._channels = {}
        self._pieces = {}

    def close(self) -> None:
        self.end()
        self._subscriber.undeclare()

    def send(self, header: Header, payload: bytes, unless_waiting: bool = False) -> None:
        """Queues a message; `header.dest` may be several links away. It is dropped, where asked, while
        an older one of the same name has not left: a slow link then carries the newest it can."""
        if header.dest == self.name:
            self.mailbox.put(Letter(header, payload))
            return
        channel = self._channel(header.dest)
        if unless_waiting and channel.waits(header):
            self.counts["outrun"] += 1
            return
        relayed = channel.link.neighbour != header.dest
        if not (relayed and self._roads.cut_through and len(payload) > 2 * SMALLEST_PIECE):
            channel.put(header, payload)
            return
        size = max(-(-len(payload) // PIECES), SMALLEST_PIECE)
        pieces = -(-len(payload) // size)
        for i in range(pieces):
            part = msgspec.structs.replace(header, piece=i, pieces=pieces)
            channel.put(part, payload[i * size : (i + 1) * size])

    def post(self, header: Header, payload: bytes, to: str) -> None:
        """Sends a best-effort message over one link, whole: to its destination or to a relay."""
        self._channel(to).put(header, payload)

    def _channel(self, dest: str) -> _Channel:
        neighbour = self._roads.next_hop.get(dest, dest)
        channel = self._channels.get(neighbour)
        if channel is None:  # no emulated link: straight to the destination
            channel = self._channels[neighbour] = _Channel(
                self, OutLink(neighbour, f"{self.name}>{neighbour}"), False, None
            )
        return channel

    def _arrived(self, sample: Any) -> None:
        """A message from the network: nothing of it is trusted before it has been checked."""
        try:
            if sample.attachment is None:
                raise BadMessage("it has no header")
            header = unpack_header(sample.attachment.to_bytes())
            payload = sample.payload.to_bytes()
            if header.pieces == 1 and len(payload) != header.bytes:
                raise BadMessage(f"{len(payload)} bytes where the header says {header.bytes}")
            if len(payload) > header.bytes:
                raise BadMessage(f"a piece of {len(payload)} of {header.bytes} bytes")
        except BadMessage as error:
            self.counts["bad"] += 1
            log.warning("%s dropped a malformed message: %s", self.name, error)
            return
        if header.run != self.run:
            self.counts["foreign"] += 1
            return
        if header.due:  # a stranger's clock must not hold us up
            soonest = min(header.due, time.monotonic() + MAX_LATENCY)
            header = msgspec.structs.replace(header, due=soonest)
        if header.dest != self.name:
            self._relay(header, payload)
        elif header.pieces > 1:
            self._piece(header, payload)
        else:
            self._deliver(header, payload)

    def next_probe(self) -> int:
        return next(self._probe_number)

    def _deliver(self, header: Header, payload: bytes) -> None:
        if header.kind in ("probe", "probed"):
            self.probes.put(Letter(header, payload))
            return
        if not self.mailbox.put(Letter(header, payload)):
            self.counts["doubled"] += 1

    def _relay(self, header: Header, payload: bytes) -> None:
        if header.dest not in self._roads.next_hop and header.dest not in self._channels:
            self.counts["foreign"] += 1
            return
        self.counts["relayed"] += 1
        if header.slot >= 0 and self.radio is not None:
            self.radio.relay(header, payload)
            return
        self._channel(header.dest).put(header, payload)

    def _piece(self, header: Header, payload: bytes) -> None:
        key = (header.source, *header.key)
        if key not in self._pieces and len(self._pieces) >= MAX_PARTIAL:
            self.counts["bad"] += 1  # somebody sends beginnings without ends
            return
        pieces = self._pieces.setdefault(key, _Pieces(header))
        if pieces.add(header, payload):
            del self._pieces[key]
            self._deliver(
                msgspec.structs.replace(header, piece=0, pieces=1), b"".join(pieces.parts)
            )


class _Pieces:
    """The pieces of one message, until all are there. Pieces of a channel come in order."""

    def __init__(self, header: Header) -> None:
        self.parts: list[bytes] = []
        self.bytes = header.bytes
        self.size = 0

    def add(self, header: Header, payload: bytes) -> bool:
        if header.piece == len(self.parts) and self.size + len(payload) <= self.bytes:
            self.parts.append(payload)
            self.size += len(payload)
        return len(self.parts) == header.pieces


class _Channel:
    """One outgoing channel: a queue and the thread that empties it."""

    def __init__(
        self, fabric: Fabric, link: OutLink, record: bool, changes: Changes | None
    ) -> None:
        self.link = link
        self._changing: ChangingLink | None = None
        if changes is not None and link.channel in changes.links and link.bytes_per_s:
            self._changing = ChangingLink(changes.links[link.channel], changes.start)
        self._fabric = fabric
        self._record = record
        self._queue: queue.SimpleQueue[tuple[float, Header, bytes] | None] = queue.SimpleQueue()
        self._clock: Clock = SharedClock(Path(link.shared)) if link.shared else OwnClock()
        self._publisher = fabric.session.declare_publisher(
            fabric.data_key(link.neighbour),
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
        )
        self._stopped = threading.Event()
        self._best_effort: Any = None  # a second publisher, made when it is needed
        self._waiting: Counter[tuple[str, int, int, int]] = Counter()  # messages in the queue
        self._slow_until = 0.0
        self._thread = threading.Thread(
            target=self._run, name=f"channel {link.channel}", daemon=True
        )
        self._thread.start()

    @property
    def heard(self) -> bool:
        """Whether anybody listens at the other end."""
        return bool(self._publisher.matching_status.matching)

    def waits(self, header: Header) -> bool:
        """Whether a message of this name is still in the queue, of whichever minibatch."""
        return self._waiting[_name(header)] > 0

    def put(self, header: Header, payload: bytes) -> None:
        """Hands a message to the channel: straight through where the link takes it at once."""
        now = time.monotonic()
        queue_it = (
            self.link.bytes_per_s
            or self.link.latency_s
            or now < self._slow_until
            or header.pieces > 1  # pieces stay in order
            or header.source != self._fabric.name  # Zenoh's receiving thread must not wait
            or not self._queue.empty()
        )
        if queue_it:
            self._waiting[_name(header)] += 1
            self._queue.put((now, header, payload))
            return
        self._publish(header, payload, now)
        if time.monotonic() - now > SLOW_S:  # it is backed up: let the thread do the waiting
            self._slow_until = now + RETRY_S

    def stop(self) -> None:
        self._stopped.set()
        self._queue.put(None)
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None and not self._stopped.is_set():
            ready, header, payload = item
            # A relayed message is ready when its emulated latency is over, not when it came.
            ready = max(ready, header.due)
            start = end = ready
            if self.link.bytes_per_s:
                sleep_until(header.due)  # book in the order of readiness
                start, end = self._book(ready, len(payload))
                if not self._wait(end):
                    continue
            latency = self._changing.latency(end) if self._changing else self.link.latency_s
            due = end + latency if latency else 0.0
            if due or header.due:
                header = msgspec.structs.replace(header, due=due)
            if not self.link.bytes_per_s:
                start = (
                    time.monotonic()
                )  # the link's own time; only the hand-over is seen from here
            self._publish(header, payload, start, end if self.link.bytes_per_s else None)
            self._waiting[_name(header)] -= 1
            if not self.link.bytes_per_s and self._queue.empty():
                self._slow_until = 0.0  # all is out: the link keeps up again
        self._publisher.undeclare()
        if self._best_effort is not None:
            self._best_effort.undeclare()

    def _publisher_for(self, header: Header) -> Any:
        """Best effort where a message may get lost, and its receiver does not wait for the word."""
        radio = self._fabric.radio
        if header.slot < 0 or radio is None or radio.rules.told:
            return self._publisher
        if self._best_effort is None:
            self._best_effort = self._fabric.session.declare_publisher(
                self._fabric.data_key(self.link.neighbour),
                congestion_control=zenoh.CongestionControl.DROP,
                reliability=zenoh.Reliability.BEST_EFFORT,
            )
        return self._best_effort

    def _book(self, ready: float, size: int) -> tuple[float, float]:
        if self._changing is not None:
            return self._changing.book(ready, size)
        return self._clock.book(ready, size / self.link.bytes_per_s)

    def _wait(self, end: float) -> bool:
        """Until a message has left; False where it never will, or the run is over first."""
        if end == math.inf:
            self._fabric.counts["unreachable"] += 1
            return False
        if self._stopped.wait(max(0.0, end - time.monotonic() - 0.001)):
            return False
        sleep_until(end)
        return True

    def _publish(
        self, header: Header, payload: bytes, start: float, end: float | None = None
    ) -> None:
        self._publisher_for(header).put(payload, attachment=pack_header(header))
        self._fabric.counts["sent"] += 1
        if self._record and not header.lost:  # the word of a loss is no message of the network's
            label = f"{header.kind}{header.at}>{header.dest}"
            end = time.monotonic() if end is None else end
            self._fabric.transfers.append(
                Span(self.link.channel, "transfer", start, end, header.step, header.micro, label,
                     len(payload))
            )  # fmt: skip


def _name(header: Header) -> tuple[str, int, int, int]:
    return header.kind, header.at, header.micro, header.part
