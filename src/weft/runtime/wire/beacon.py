"""Finds nodes of a fleet on the local network, however they were started: one question, a short answer.

    with Beacon("pi", fleet_id("weft", keys), port, wide=keys is not None): ...     # a node
    look(fleet_id("weft", keys), wide=keys is not None)                             # [("127.0.0.1", 7447)]

A node answers only a question that has its fleet's public id, with its name and its port. Whoever asks gets
no further by that: with keys the port wants a certificate. A node without keys answers on its own machine
only.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import struct
import threading
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.runtime.keys.folder import Keys
from weft.runtime.wire.closing import Closing

log = logging.getLogger("weft.beacon")

GROUP, PORT = "239.255.77.70", 7449  # of this protocol; no router passes it on
ASK = b"weft?1 "
LARGEST = 512  # bytes of a question or an answer
LOOK_S = 0.5
MOST = 256  # answers that are read
LOOPBACK = "127.0.0.1"


class Answer(Struct, frozen=True):
    """What a node tells."""

    fleet: str
    name: str
    port: int


def fleet_id(group: str, keys: Keys | None) -> str:
    """A fleet's public id: from its authority's certificate, or from its name if it has no keys."""
    data = Path(keys.authority).read_bytes() if keys is not None else f"open/{group}".encode()
    return hashlib.sha256(data).hexdigest()[:16]


class Beacon(Closing):
    """A node's answers. `wide`: to other machines too. Where multicast is not possible, that is logged."""

    def __init__(self, name: str, fleet: str, port: int, *, wide: bool) -> None:
        self._question = ASK + fleet.encode()
        self._answer = msgspec.json.encode(Answer(fleet, name, port))
        self._wide, self._closing = wide, threading.Event()
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        try:
            self._socket = _listening(wide)
        except OSError as error:
            log.warning("%s cannot be found by others without --join: %s", name, error)
            return
        self._thread = threading.Thread(target=self._serve, name="beacon", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(2.0)
        if self._socket is not None:
            self._socket.close()

    def _serve(self) -> None:
        assert self._socket is not None
        while not self._closing.is_set():
            try:
                data, source = self._socket.recvfrom(LARGEST)
            except TimeoutError:
                continue
            except OSError:
                return
            if data == self._question and (self._wide or source[0] == LOOPBACK):
                with contextlib.suppress(OSError):
                    self._socket.sendto(self._answer, source)


def look(fleet: str, *, wide: bool, seconds: float = LOOK_S) -> list[tuple[str, int]]:
    """Address and port of each node of a fleet that answers. An answer that cannot be read is dropped."""
    places: dict[tuple[str, int], None] = {}
    with contextlib.ExitStack() as stack:
        asking = [one for one in (_asking(LOOPBACK), _asking("") if wide else None) if one]
        for each in asking:
            stack.enter_context(each)
            with contextlib.suppress(OSError):
                each.sendto(ASK + fleet.encode(), (GROUP, PORT))
        end = time.monotonic() + seconds
        for each in asking:
            for _ in range(MOST):
                each.settimeout(max(0.001, end - time.monotonic()))
                try:
                    data, source = each.recvfrom(LARGEST)
                    answer = msgspec.json.decode(data, type=Answer)
                except msgspec.MsgspecError:
                    continue
                except OSError:
                    break
                if answer.fleet == fleet and 0 < answer.port < 1 << 16:
                    places[source[0], answer.port] = None
            end = max(end, time.monotonic() + 0.05)  # the second one had the same time to collect
    return list(places)


def _listening(wide: bool) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # several nodes on one machine
        if hasattr(socket, "SO_REUSEPORT"):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind((GROUP, PORT))
        _join(one, LOOPBACK)
        if wide:
            with contextlib.suppress(OSError):  # no network yet: this machine alone finds it
                _join(one, "0.0.0.0")
        one.settimeout(0.5)
    except OSError:
        one.close()
        raise
    return one


def _join(one: socket.socket, interface: str) -> None:
    places = struct.pack("4s4s", socket.inet_aton(GROUP), socket.inet_aton(interface))
    one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, places)


def _asking(interface: str) -> socket.socket | None:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if interface:
            address = socket.inet_aton(interface)
            one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)
            one.bind((interface, 0))
        one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    except OSError:
        one.close()
        return None
    return one
