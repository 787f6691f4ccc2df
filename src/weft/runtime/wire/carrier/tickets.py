"""How a device gets leave to connect to another one: it asks over Zenoh, which has checked who it is.

    ticket = unpack_ticket(reply)                # at the device that sends
    answer = greeting(ticket)                    # the first bytes on the connection

A ticket names the ports of the door and carries a secret for one connection. Where a fleet has keys, Zenoh's
mutual TLS protects the secret, and the fence allows a device to ask in its own name alone. A question carries
a proof that the device has the key of the run.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from typing import NamedTuple

import msgspec
from msgspec import Struct

from weft.runtime.wire.frames import BadMessage

MAGIC = b"weft-1\r\n"
ID_BYTES, SECRET_BYTES, MAC_BYTES = 16, 32, 16
GREETING_BYTES = len(MAGIC) + ID_BYTES + MAC_BYTES
MAX_TICKETS = 1024  # that nobody has used yet
MAX_OF_ONE = 8  # of these for one device: it cannot push out those of others
TICKET_S = 10.0  # for which a ticket can be used
MAX_QUESTION = 1024


class Question(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who wants to connect in which run, and the proof that it has the run's key."""

    run: str
    source: str
    proof: bytes


class Ticket(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Leave for one connection."""

    session: str  # of Zenoh, by which the sender finds the address of the neighbour
    ports: tuple[tuple[str, int], ...]  # (host, port)
    id: bytes
    secret: bytes
    encrypted: bool
    proof: bytes = b""  # that it comes from a device of the run


_encoder = msgspec.msgpack.Encoder()
_questions, _tickets = msgspec.msgpack.Decoder(Question), msgspec.msgpack.Decoder(Ticket)


def ask(run: str, source: str, dest: str, run_key: bytes) -> bytes:
    """The question that `source` sends to `dest`."""
    return _encoder.encode(Question(run, source, _proof(run, source, dest, run_key)))


def unpack_question(data: bytes) -> Question:
    """The question; BadMessage for any other bytes."""
    if len(data) > MAX_QUESTION:
        raise BadMessage(f"a question of {len(data)} bytes; at most {MAX_QUESTION} are allowed")
    try:
        return _questions.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"not a question: {error}") from None


def is_proven(question: Question, dest: str, run_key: bytes) -> bool:
    """Whether whoever asks has the key of the run."""
    expected = _proof(question.run, question.source, dest, run_key)
    return hmac.compare_digest(question.proof, expected)


def pack_ticket(ticket: Ticket, question: Question, dest: str, run_key: bytes) -> bytes:
    """The answer to a question. Only who has the key of the run can give it."""
    proof = _ticket_proof(ticket, question.run, question.source, dest, run_key)
    return _encoder.encode(msgspec.structs.replace(ticket, proof=proof))


def is_of_run(ticket: Ticket, run: str, source: str, dest: str, run_key: bytes) -> bool:
    """Whether a device of the run gave this ticket. On an open network anybody can answer a question."""
    expected = _ticket_proof(ticket, run, source, dest, run_key)
    return hmac.compare_digest(ticket.proof, expected)


def unpack_ticket(data: bytes) -> Ticket:
    """The ticket; BadMessage for any other bytes."""
    if len(data) > 4 * MAX_QUESTION:
        raise BadMessage(f"a ticket of {len(data)} bytes; at most {4 * MAX_QUESTION} are allowed")
    try:
        ticket = _tickets.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"not a ticket: {error}") from None
    if len(ticket.id) != ID_BYTES or len(ticket.secret) != SECRET_BYTES:
        raise BadMessage("a ticket of another size")
    if any(not 0 < port < 65536 for _, port in ticket.ports):
        raise BadMessage("a ticket with an impossible port")
    return ticket


def greeting(ticket_id: bytes, secret: bytes) -> bytes:
    """What the sender writes first."""
    return MAGIC + ticket_id + _mac(secret, b"weft caller", ticket_id)


def welcome(ticket_id: bytes, secret: bytes) -> bytes:
    """What the door answers: it has the ticket too."""
    return _mac(secret, b"weft door", ticket_id)


class Given(NamedTuple):
    """What a door remembers of a ticket."""

    id: bytes
    secret: bytes
    source: str  # the device that asked for it
    until: float


class Tickets:
    """The tickets that a door has given out."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._given: dict[bytes, Given] = {}  # by id, the oldest first

    def give(self, source: str) -> Given:
        """A new ticket for a device. The oldest is dropped when there are too many, of this device first."""
        ticket_id, secret = secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES)
        given = Given(ticket_id, secret, source, time.monotonic() + TICKET_S)
        with self._guard:
            own = [old for old in self._given.values() if old.source == source]
            if len(own) >= MAX_OF_ONE:
                del self._given[own[0].id]
            elif len(self._given) >= MAX_TICKETS:
                del self._given[next(iter(self._given))]
            self._given[ticket_id] = given
        return given

    def take(self, data: bytes) -> Given:
        """The ticket that a greeting shows, which is used up. BadMessage otherwise."""
        ticket_id = data[len(MAGIC) : len(MAGIC) + ID_BYTES]
        with self._guard:
            given = self._given.pop(ticket_id, None)
        secret = given.secret if given is not None else b""
        genuine = hmac.compare_digest(data, greeting(ticket_id, secret))
        if given is None or time.monotonic() > given.until or not genuine:
            raise BadMessage("it has no ticket")
        return given

    @property
    def expects_somebody(self) -> bool:
        """Whether there is a ticket that can still be used."""
        with self._guard:
            newest = next(reversed(self._given.values()), None)
        return newest is not None and time.monotonic() <= newest.until

    def clear(self) -> None:
        """No ticket counts any more."""
        with self._guard:
            self._given = {}


def _proof(run: str, source: str, dest: str, run_key: bytes) -> bytes:
    return _mac(run_key, b"weft ticket", "\n".join((run, source, dest)).encode())


def _ticket_proof(ticket: Ticket, run: str, source: str, dest: str, run_key: bytes) -> bytes:
    said = _encoder.encode((msgspec.structs.replace(ticket, proof=b""), run, source, dest))
    return _mac(run_key, b"weft of run", said)


def _mac(key: bytes, what: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=MAC_BYTES, person=what).digest()
