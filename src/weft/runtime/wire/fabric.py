"""Carries tensors from device to device: over direct links, or relayed along a route.

    fabric = Fabric(session, "weft", "pi", links)
    fabric.send(header, payload)              # returns at once; the message leaves when its link is free
    fabric.mailbox.take(key, 30.0, lambda: "act3 from nuc")

Messages leave through channels (`channel.py`). They arrive through Zenoh, or at the node's door on plain
connections (`carrier`). This module checks them, and puts them together or passes them on.
"""

from __future__ import annotations

import itertools
import logging
import queue
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import zenoh

from weft.errors import WeftError
from weft.runtime.wire import topics
from weft.runtime.wire.carrier.door import Door, Receiver
from weft.runtime.wire.carrier.line import Line
from weft.runtime.wire.carrier.opening import LineOpener, answer
from weft.runtime.wire.frames import (
    BadMessage,
    Buffer,
    Header,
    Payload,
    pack_header,
    unpack_header,
    whole,
)
from weft.runtime.wire.ledger import SPANS, Ledger
from weft.runtime.wire.limits import MAX_LINKS, Seldom, check_name, memory_bytes
from weft.runtime.wire.links.changes import Changes
from weft.runtime.wire.links.channel import Channel, OutLink, Roads
from weft.runtime.wire.links.shaping import clock_path
from weft.runtime.wire.links.trouble import Troubles
from weft.runtime.wire.mailbox import Cancelled, Letter, Mailbox
from weft.runtime.wire.pieces import Unfinished
from weft.runtime.wire.radio import Transmitter
from weft.runtime.wire.seal import (
    Numbers,
    Replays,
    header_is_sealed,
    seal_header,
    split_header,
)
from weft.runtime.wire.span_ring import SpanRing

log = logging.getLogger("weft.fabric")

PIECES = 32  # of a message that crosses several links: each relay passes on the pieces that it has
SMALLEST_PIECE = 16 * 1024
MAX_PROBES = 64  # that wait to be answered
MAX_PROBE_BYTES = 5 << 20
MAX_INBOX = 4 << 30  # bytes that wait here, or wait to be passed on
MAX_LATENCY = 10.0  # seconds that an emulated link may delay a message


class Fabric:
    """One device's end of the network. `hosts` are where it listens for plain connections; none: Zenoh
    carries everything. `encrypted` says whether these are encrypted."""

    def __init__(
        self,
        session: Any,
        group: str,
        name: str,
        scratch: Path | None = None,
        hosts: Sequence[str] = (),
        encrypted: bool = False,
    ) -> None:
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
        self._lines_asked: set[str] = set()  # neighbours of this run
        self._key = b""  # of the run, for tensors
        self._numbers, self._replays = Numbers(), Replays()
        self._pieces = Unfinished(self._count)
        self._door, self._doorbell = None, None
        if hosts:
            receiver = Receiver(self._admitted, self._take, self._count, self._room)
            self._door = Door(hosts, receiver, encrypted, str(session.info.zid()))
            self._doorbell = session.declare_queryable(
                topics.door(group, name, "*"), zenoh.handlers.Callback(self._asked, indirect=False)
            )
        # Zenoh's receiving thread calls this directly. It only checks the message and files it.
        self._subscriber = session.declare_subscriber(
            topics.all_data(group, name), zenoh.handlers.Callback(self._arrived, indirect=False)
        )

    @property
    def counts(self) -> Counter[str]:
        return self.ledger.counts

    def settle(self, seconds: float) -> None:
        """Afterwards `transfers` has every message that another device has received."""
        deadline = time.monotonic() + seconds
        for channel in list(self._channels.values()):
            channel.settle(max(0.0, deadline - time.monotonic()))

    @property
    def transfers(self) -> SpanRing:
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
        most_spans: int = SPANS["train"],
    ) -> None:
        """Forgets the run before and takes the links of a new run, and its key for tensors."""
        self.end()
        if key != self._key:
            self._key, self._replays = key, Replays()
        self._roads = roads
        if self._door is not None:
            self._door.run_key = key
        self.begun += 1
        self.mailbox = Mailbox(self._inbox)  # what still comes for the run before goes into its own
        self.ledger.transfers = SpanRing(most_spans)
        self.counts.clear()
        for link in roads.links:
            self._channels[link.neighbour] = self._made(link, run, record, changes)
        self.run = run  # last: from now on its messages are taken

    def wait_for_neighbours(self, seconds: float) -> None:
        """Returns when every neighbour of this run listens, and there are lines to those that can be reached.
        Raises WeftError with the names of those that do not listen."""
        deadline = time.monotonic() + seconds
        missing = list(self._channels.values())
        while missing := [c for c in missing if not c.way.heard]:
            if self.mailbox.cancelled is not None:
                raise Cancelled(self.mailbox.cancelled)
            if time.monotonic() > deadline:
                names = ", ".join(c.link.neighbour for c in missing)
                raise WeftError(
                    f"{self.name} cannot reach {names} (tried for {seconds:g} s); "
                    "do they run, and can these machines open connections to each other?"
                )
            time.sleep(0.01)
        if self._door is not None and self.radio is None:  # best effort stays with Zenoh
            self._open_lines(list(self._channels))

    def open_line(self, neighbour: str) -> None:
        """Opens a line to one neighbour of this run, once: probes take the way that tensors take."""
        if self._door is None or self.radio is not None or neighbour in self._lines_asked:
            return
        self._lines_asked.add(neighbour)
        if neighbour in self._channels:
            self._open_lines([neighbour])

    def _open_lines(self, neighbours: Sequence[str]) -> None:
        """Where there is no line, Zenoh carries the tensors: slower, and said."""
        opener = LineOpener(self.session, self.group, self.name, self.run, self._key)
        here = self._channels
        channels = {n: here[n] for n in neighbours if n in here and not here[n].way.has_line}
        self._lines_asked |= channels.keys()
        for name, opened in opener.open(list(channels)).items():
            if isinstance(opened, Line):
                self.counts["lines"] += 1
                channels[name].take_line(opened, partial(opener.one, name))
            else:
                self.counts["without_line"] += 1
                self._log.warning(
                    "%s sends tensors to %s through Zenoh, which takes more processor time: %s",
                    self.name, name, opened,
                )  # fmt: skip

    def end(self) -> None:
        self.run = ""
        self.radio = None
        channels, self._channels = self._channels, {}
        for channel in list(channels.values()):  # a prober may just add one
            channel.stop()
        self._lines_asked = set()
        self._pieces = Unfinished(self._count)
        self.mailbox.drop()
        if self._door is not None:
            self._door.hang_up()

    def close(self) -> None:
        self.end()
        self._subscriber.undeclare()
        if self._door is not None and self._doorbell is not None:
            self._doorbell.undeclare()
            self._door.close()

    def send(self, header: Header, payload: Payload, unless_waiting: bool = False) -> None:
        """Queues a message; `header.dest` may be several links away. With `unless_waiting` the message is
        dropped while an older one of the same name has not left, so that a slow link is not filled with old
        messages."""
        if header.dest == self.name:
            self.mailbox.put(Letter(header, whole(payload)))
            return
        channel = self._channel(header.dest)
        if unless_waiting and channel.waits(header):
            self.counts["outrun"] += 1
            return
        self._check_room(channel)
        relayed = channel.link.neighbour != header.dest
        if not (relayed and self._roads.cut_through and len(payload) > 2 * SMALLEST_PIECE):
            channel.put(header, payload)
            return
        payload = whole(payload)
        size = max(-(-len(payload) // PIECES), SMALLEST_PIECE)
        pieces = -(-len(payload) // size)
        for i in range(pieces):
            part = msgspec.structs.replace(header, piece=i, pieces=pieces)
            channel.put(part, payload[i * size : (i + 1) * size])

    def post(self, header: Header, payload: Buffer, to: str) -> None:
        """Sends a whole best-effort message over one link, to its destination or to a relay."""
        channel = self._channel(to)
        self._check_room(channel)
        channel.put(header, payload)

    def _check_room(self, channel: Channel) -> None:
        """Raises WeftError where this device makes messages faster than a link carries them, for long."""
        if channel.backlog > self._inbox:
            raise WeftError(
                f"{channel.backlog} bytes from {self.name} wait for the link to {channel.link.neighbour}: "
                "it carries less than this device sends; give a plan that sends less"
            )

    def _channel(self, dest: str) -> Channel:
        neighbour = self._roads.next_hop.get(dest, dest)
        channel = self._channels.get(neighbour)
        if channel is None:  # no emulated link: directly to the destination
            if len(self._channels) >= MAX_LINKS:
                raise WeftError(f"{self.name} has {MAX_LINKS} links already; none to {neighbour}")
            channel = self._open(neighbour)
        return channel

    def _open(self, neighbour: str) -> Channel:
        """A channel of the run under way. Several threads may ask for the same one, and the run may end
        meanwhile: no lock is held while Zenoh opens it. The name may come from the network: `*` would reach
        everybody, and each would pass the message on to everybody again."""
        check_name("neighbour", neighbour)
        channels, run = self._channels, self.run
        if not run:
            raise WeftError(f"{self.name} has no run in which to reach {neighbour}")
        made = self._made(OutLink(neighbour, f"{self.name}>{neighbour}"), run)
        channel = channels.setdefault(neighbour, made)
        if channel is not made:
            made.stop()
        elif channels is not self._channels:
            made.stop()
            raise WeftError(f"{self.name}: the run is over")
        return channel

    def _made(
        self, link: OutLink, run: str, record: bool = False, changes: Changes | None = None
    ) -> Channel:
        return Channel(
            self.session, topics.data(self.group, link.neighbour, self.name, run), link,
            self.ledger, self._droppable, self._sealed, record=record, changes=changes, scratch=self._scratch,
            troubles=self.troubles,
        )  # fmt: skip

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
        attachment = sample.attachment
        header = self._admitted(attachment.to_bytes() if attachment else b"", len(sample.payload))
        if header is not None:
            self._take(header, sample.payload.to_bytes())

    def _asked(self, query: Any) -> None:
        """Gives a ticket for a connection to a device of this run."""
        with query:
            if self._door is None or not answer(query, self._door, self.name, self.run, self._key):
                self.counts["foreign"] += 1

    def _count(self, what: str) -> None:
        self.counts[what] += 1

    def _admitted(self, sealed: bytes, size: int) -> Header | None:
        """The header of a message with a payload of `size` bytes, if the message may be received."""
        try:
            packed, seal = split_header(sealed)
            header = unpack_header(packed)
            if header.pieces == 1 and size != header.bytes:
                raise BadMessage(f"{size} bytes where the header says {header.bytes}")
            if size > header.bytes:
                raise BadMessage(f"a piece of {size} of {header.bytes} bytes")
        except BadMessage as error:
            self.counts["bad"] += 1
            self._log.warning("%s dropped a malformed message: %s", self.name, error)
            return None
        if not self.run or header.run != self.run:
            self.counts["foreign"] += 1
            return None
        if not header_is_sealed(self._key, packed, seal):
            self.counts["forged"] += 1
            return None
        return header

    def _take(self, header: Header, payload: Buffer) -> None:
        """Files or passes on a message whose header was admitted. The run may have ended meanwhile, and may
        end at any moment: what is taken goes where the messages of this moment go."""
        mailbox, unfinished = self.mailbox, self._pieces
        if header.run != self.run:
            self.counts["foreign"] += 1
            return
        if header.dest == self.name and not self._replays.take(header.source, header.count):
            self.counts["replayed"] += 1
            return
        if len(payload) > self._room():
            self.counts["bad"] += 1
            return
        if header.due:  # a wrong clock must not block this node
            soonest = min(header.due, time.monotonic() + MAX_LATENCY)
            header = msgspec.structs.replace(header, due=soonest)
        if header.dest != self.name:
            self._relay(header, payload)
        elif header.pieces == 1:
            self._deliver(header, payload, mailbox)
        elif (message := unfinished.add(header, payload)) is not None:
            self._deliver(msgspec.structs.replace(header, piece=0, pieces=1), message, mailbox)

    def _room(self) -> int:
        """Bytes that may still be taken from the network: for all that waits here, or to be passed on."""
        waits = self.mailbox.bytes + sum(
            channel.relayed for channel in list(self._channels.values())
        )
        return self._inbox - waits - self._pieces.size

    def next_probe(self) -> int:
        return next(self._probe_number)

    def _deliver(self, header: Header, payload: Buffer, mailbox: Mailbox) -> None:
        if header.kind in ("probe", "probed"):
            if self.probes.qsize() >= MAX_PROBES or len(payload) > MAX_PROBE_BYTES:
                self.counts["bad"] += 1
                return
            # A probe's bytes have done their work when they have arrived; when that was is kept.
            if not header.due:
                header = msgspec.structs.replace(header, due=time.monotonic())
            self.probes.put(Letter(header, payload if header.kind == "probed" else b""))
            return
        if not mailbox.put(Letter(header, payload)):
            self.counts["doubled"] += 1

    def _relay(self, header: Header, payload: Buffer) -> None:
        known = header.dest in self._roads.next_hop or header.dest in self._channels
        if not known or header.source == self.name:
            self.counts["foreign"] += 1
            return
        try:
            channel = self._channel(header.dest)
        except WeftError:  # too many links
            self.counts["bad"] += 1
            return
        self.counts["relayed"] += 1
        if header.slot >= 0 and self.radio is not None:
            self.radio.relay(header, payload)
            return
        channel.put(header, payload)
