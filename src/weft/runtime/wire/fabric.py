"""Carries tensors from device to device: over direct links, or relayed along a route.

    fabric = Fabric(session, "weft", "pi", links)
    fabric.send(header, payload)              # returns at once; the message leaves when its link is free
    fabric.mailbox.take(key, 30.0, lambda: "act3 from nuc")

Messages leave through channels (`channel.py`). This module receives messages, checks them, and puts them
together or passes them on.
"""

from __future__ import annotations

import itertools
import logging
import queue
import time
from collections import Counter
from collections.abc import MutableSequence
from pathlib import Path
from typing import Any

import msgspec
import zenoh

from weft.errors import WeftError
from weft.program.timeline import Span
from weft.runtime.wire import topics
from weft.runtime.wire.changes import Changes
from weft.runtime.wire.channel import Channel, Ledger, OutLink, Roads
from weft.runtime.wire.frames import BadMessage, Header, pack_header, unpack_header
from weft.runtime.wire.limits import MAX_LINKS, Seldom, memory_bytes
from weft.runtime.wire.mailbox import Cancelled, Letter, Mailbox
from weft.runtime.wire.radio import Transmitter
from weft.runtime.wire.seal import (
    Numbers,
    Replays,
    header_is_sealed,
    seal_header,
    split_header,
)
from weft.runtime.wire.shaping import clock_path
from weft.runtime.wire.trouble import Troubles

log = logging.getLogger("weft.fabric")

PIECES = 32  # of a message that crosses several links: each relay passes on the pieces that it has
SMALLEST_PIECE = 16 * 1024
MAX_PARTIAL = 256  # messages of which some pieces are still missing
MAX_PROBES = 64  # that wait to be answered
MAX_PROBE_BYTES = 5 << 20
MAX_INBOX = 4 << 30  # bytes that wait here, and as many that wait to be passed on
MAX_LATENCY = 10.0  # seconds that an emulated link may delay a message


class Fabric:
    """One device's end of the network."""

    def __init__(self, session: Any, group: str, name: str, scratch: Path | None = None) -> None:
        self.session = session
        self._scratch = scratch  # folder for the clocks of shared media, if the node is emulated
        self.troubles = Troubles(scratch, name)  # of an emulated fleet
        self.group = group
        self.name = name
        self._inbox = min(MAX_INBOX, memory_bytes() // 2)
        self.mailbox = Mailbox(self._inbox)
        self._log = Seldom(log)
        self.ledger = Ledger(name)
        self.run = ""
        self.begun = 0  # counts jobs: a probe that spans two jobs is not valid
        self.probes: queue.SimpleQueue[Letter | None] = queue.SimpleQueue()
        self._probe_number = itertools.count()
        self.radio: Transmitter | None = None  # if a run's messages are best effort
        self._roads = Roads()
        self._channels: dict[str, Channel] = {}
        self._key = b""  # of the run, for tensors
        self._numbers, self._replays = Numbers(), Replays()
        self._pieces: dict[tuple[Any, ...], _Pieces] = {}
        # Zenoh's receiving thread calls this directly. It only checks the message and files it.
        self._subscriber = session.declare_subscriber(
            topics.all_data(group, name), zenoh.handlers.Callback(self._arrived, indirect=False)
        )

    @property
    def counts(self) -> Counter[str]:
        return self.ledger.counts

    @property
    def transfers(self) -> MutableSequence[Span]:
        return self.ledger.transfers

    def check(self, roads: Roads) -> None:
        """Raises InputError for links that this node refuses to open."""
        for link in roads.links:
            if link.shared is not None:
                clock_path(self._scratch, link.shared)

    def begin(
        self,
        run: str,
        roads: Roads,
        record: bool,
        changes: Changes | None = None,
        key: bytes = b"",
    ) -> None:
        """Forgets the run before and takes the links of a new run, and its key for tensors."""
        self.end()
        if key != self._key:
            self._key, self._replays = key, Replays()
        self.run, self._roads = run, roads
        self.begun += 1
        self.mailbox.clear()
        self.ledger.transfers = []
        self.counts.clear()
        for link in roads.links:
            self._open(link, record, changes)

    def wait_for_neighbours(self, seconds: float) -> None:
        """Returns when every neighbour of this run listens. Raises WeftError with the names of those that do
        not."""
        deadline = time.monotonic() + seconds
        missing = list(self._channels.values())
        while missing := [c for c in missing if not c.heard]:
            if self.mailbox.cancelled is not None:
                raise Cancelled(self.mailbox.cancelled)
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
        """Queues a message; `header.dest` may be several links away. With `unless_waiting` the message is
        dropped while an older one of the same name has not left, so that a slow link is not filled with old
        messages."""
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
        """Sends a whole best-effort message over one link, to its destination or to a relay."""
        self._channel(to).put(header, payload)

    def _channel(self, dest: str) -> Channel:
        neighbour = self._roads.next_hop.get(dest, dest)
        channel = self._channels.get(neighbour)
        if channel is None:  # no emulated link: directly to the destination
            if len(self._channels) >= MAX_LINKS:
                raise WeftError(f"{self.name} has {MAX_LINKS} links already; none to {neighbour}")
            channel = self._open(OutLink(neighbour, f"{self.name}>{neighbour}"))
        return channel

    def _open(self, link: OutLink, record: bool = False, changes: Changes | None = None) -> Channel:
        channel = self._channels[link.neighbour] = Channel(
            self.session, topics.data(self.group, link.neighbour, self.name, self.run), link,
            self.ledger, self._droppable, self._sealed, record=record, changes=changes, scratch=self._scratch,
            troubles=self.troubles,
        )  # fmt: skip
        return channel

    def _droppable(self, header: Header) -> bool:
        """Whether a message may get lost without a notice to its receiver."""
        return header.slot >= 0 and self.radio is not None and not self.radio.rules.told

    def _sealed(self, header: Header) -> bytes:
        """The bytes of a header. A relay keeps the sender's number."""
        if header.source == self.name:
            header = msgspec.structs.replace(header, count=self._numbers.next())
        return seal_header(self._key, pack_header(header))

    def _arrived(self, sample: Any) -> None:
        """Takes a message from the network. Nothing in it is trusted before it has been checked."""
        try:
            if sample.attachment is None:
                raise BadMessage("it has no header")
            packed, seal = split_header(sample.attachment.to_bytes())
            header = unpack_header(packed)
            payload = sample.payload.to_bytes()
            if header.pieces == 1 and len(payload) != header.bytes:
                raise BadMessage(f"{len(payload)} bytes where the header says {header.bytes}")
            if len(payload) > header.bytes:
                raise BadMessage(f"a piece of {len(payload)} of {header.bytes} bytes")
        except BadMessage as error:
            self.counts["bad"] += 1
            self._log.warning("%s dropped a malformed message: %s", self.name, error)
            return
        if not self.run or header.run != self.run:
            self.counts["foreign"] += 1
            return
        if not header_is_sealed(self._key, packed, seal):
            self.counts["forged"] += 1
            return
        if header.dest == self.name and not self._replays.take(header.source, header.count):
            self.counts["replayed"] += 1
            return
        if header.due:  # a wrong clock must not block this node
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
            if self.probes.qsize() >= MAX_PROBES or len(payload) > MAX_PROBE_BYTES:
                self.counts["bad"] += 1
                return
            # A probe's bytes have done their work when they have arrived; when that was is kept.
            if not header.due:
                header = msgspec.structs.replace(header, due=time.monotonic())
            self.probes.put(Letter(header, payload if header.kind == "probed" else b""))
            return
        if not self.mailbox.put(Letter(header, payload)):
            self.counts["doubled"] += 1

    def _relay(self, header: Header, payload: bytes) -> None:
        if header.dest not in self._roads.next_hop and header.dest not in self._channels:
            self.counts["foreign"] += 1
            return
        try:
            full = self._channel(header.dest).backlog > self._inbox
        except WeftError:
            full = True  # of links
        if full:
            self.counts["bad"] += 1
            return
        self.counts["relayed"] += 1
        if header.slot >= 0 and self.radio is not None:
            self.radio.relay(header, payload)
            return
        self._channel(header.dest).put(header, payload)

    def _piece(self, header: Header, payload: bytes) -> None:
        key = (header.source, *header.key)
        waiting = sum(pieces.size for pieces in self._pieces.values())
        full = key not in self._pieces and len(self._pieces) >= MAX_PARTIAL
        if full or waiting + len(payload) > self._inbox:
            self.counts["bad"] += 1  # too many messages whose last pieces are missing
            return
        pieces = self._pieces.setdefault(key, _Pieces(header))
        if pieces.add(header, payload):
            del self._pieces[key]
            self._deliver(
                msgspec.structs.replace(header, piece=0, pieces=1), b"".join(pieces.parts)
            )


class _Pieces:
    """The pieces of one message, until all have arrived. The pieces of a channel arrive in order."""

    def __init__(self, header: Header) -> None:
        self.parts: list[bytes] = []
        self.bytes = header.bytes
        self.size = 0

    def add(self, header: Header, payload: bytes) -> bool:
        if header.piece == len(self.parts) and self.size + len(payload) <= self.bytes:
            self.parts.append(payload)
            self.size += len(payload)
        return len(self.parts) == header.pieces
