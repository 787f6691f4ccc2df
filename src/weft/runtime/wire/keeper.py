"""Keeps a member's list and certificate up to date, and says whose certificates count.

Members ask each other for the number of their list. Who has an older one gets the newer one, which the owner
has signed. Any command of the owner hands out the newest list and renews certificates that end soon.
A device that was revoked is told so with the owner's signature, and with nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import msgspec
import zenoh
from msgspec import Struct

from weft.errors import InputError, WeftError
from weft.runtime.keys.folder import Folder, Keys
from weft.runtime.keys.members import MAX_LIST_BYTES, Members, SignedMembers, revocation
from weft.runtime.wire import topics
from weft.runtime.wire.limits import Seldom

log = logging.getLogger("weft.keys")

FIRST_S, POLL_S = 0.2, 5.0  # until the first look at others, and from then on
ASK_S = 2.0
SETTLE_S = 0.05
MAX_MESSAGE = MAX_LIST_BYTES + 8192
FRESH_S = 300.0  # by which clocks may differ when a device introduces itself


class AskNumber(Struct, frozen=True, tag="number?"):
    """Asks for the number of the list. Whoever has a certificate of the fleet may ask."""


class Introduce(Struct, frozen=True, tag="introduce"):
    """Asks whether a certificate counts; its key has signed this."""

    name: str
    certificate: bytes
    at: float
    signature: bytes

    @staticmethod
    def words(name: str, fleet: str, at: float) -> bytes:
        """What the device signs."""
        return f"weft introduce {name} {fleet} {at!r}".encode()


class TakeList(Struct, frozen=True, tag="list"):
    """A list; its signature says that it is the owner's."""

    members: SignedMembers


class TakeCertificate(Struct, frozen=True, tag="certificate"):
    """A later certificate for the key that the device has."""

    certificate: bytes


Question = AskNumber | Introduce | TakeList | TakeCertificate


class Number(Struct, frozen=True, tag="number"):
    """The number of a node's list."""

    name: str
    number: int
    busy: bool = False  # a new list counts when the node's run is over
    pending: bool = False  # it is about to open its session again
    certificate: bytes = b""  # its own, if it has to be renewed


class Verdict(Struct, frozen=True, tag="verdict"):
    """Why a certificate does not count, with the owner's signature if it was revoked; else the list."""

    words: str
    proof: bytes = b""
    members: SignedMembers | None = None


Answer = Number | Verdict
T = TypeVar("T")
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def ask(session: Any, key: str, question: Question, seconds: float = ASK_S) -> list[Answer]:
    """What nodes answer, each once and for itself: the fence says whose key an answer came under. What cannot
    be decoded is left out."""
    answers: dict[str, Answer] = {}
    for reply in session.get(
        key,
        payload=msgspec.msgpack.encode(question),
        timeout=seconds,
        consolidation=zenoh.QueryConsolidation(zenoh.ConsolidationMode.NONE),
    ):
        sender = str(reply.ok.key_expr).rpartition("/")[2] if reply.ok is not None else ""
        if reply.ok is None or sender in answers or len(reply.ok.payload) > MAX_MESSAGE:
            continue
        with contextlib.suppress(InputError):
            answer = _decoded(_answers, reply.ok.payload.to_bytes())
            if not isinstance(answer, Number) or answer.name == sender:
                answers[sender] = answer
    return list(answers.values())


class Keeper:
    """One member's part in this. `busy` says whether a run is under way; `changed` is called when the session
    has to be opened again, or, with `refused` set, ended."""

    def __init__(
        self,
        session: Any,
        keys: Keys,
        busy: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self._session, self._keys = session, keys
        self._folder = Folder(keys.members.fleet)
        self._busy, self._changed = busy, changed
        self.refused = ""  # why this device may not go on
        self._number = keys.members.number
        self._pending = False  # the session has to be opened again
        self._spoken = False  # somebody has answered
        self._guard = threading.Lock()
        self._closing = threading.Event()
        self._odd = Seldom(log)
        self._queryable: Any = None
        if not keys.is_owner:
            self._queryable = session.declare_queryable(
                topics.fence(self._fleet, keys.name), self._asked, complete=True
            )
        self._thread = threading.Thread(target=self._poll, name="keys", daemon=True)
        self._thread.start()

    @property
    def _fleet(self) -> str:
        return self._keys.members.fleet

    def close(self) -> None:
        self._closing.set()

    # --- answering --------------------------------------------------------------------------------

    def _asked(self, query: Any) -> None:
        with query:
            try:
                if query.payload is None:
                    raise InputError("an empty question")
                if len(query.payload) > MAX_MESSAGE:  # judged before it is copied
                    raise InputError(f"a message of {len(query.payload)} bytes")
                question = _decoded(_questions, query.payload.to_bytes())
                answer = self._answer(question)
            except WeftError as error:
                query.reply_err(str(error)[:300])
                return
            query.reply(topics.fence(self._fleet, self._keys.name), msgspec.msgpack.encode(answer))

    def _answer(self, question: Question) -> Answer:
        match question:
            case Introduce():
                return self._judge(question)
            case TakeList():
                self._take(question.members)
            case TakeCertificate():
                self._take_certificate(question.certificate)
        certificate = self._folder.read(f"{self._keys.name}.pem")
        from weft.runtime.keys.certificates import expiring

        wants = certificate if expiring(certificate) else b""
        return Number(self._keys.name, self._number, self._busy(), self._pending, wants)

    def _judge(self, question: Introduce) -> Verdict:
        from weft.runtime.keys import certificates

        certificates.check_issued(question.certificate, self._folder.read("authority.pem"))
        signed = Introduce.words(question.name, self._fleet, question.at)
        certificates.check_signature(question.certificate, signed, question.signature)
        if abs(time.time() - question.at) > FRESH_S:
            raise InputError(f"{question.name}'s clock differs by more than {FRESH_S:g} s")
        stored = self._folder.members()
        members = stored.opened()
        subject = certificates.subject_of(question.certificate)
        words = members.verdict(subject, question.name)
        if not words:
            return Verdict("", members=stored)
        member = next((d for d in members.devices if d.subject == subject), None)
        return Verdict(words, member.revoked if member else b"")

    # --- asking -----------------------------------------------------------------------------------

    def _poll(self) -> None:
        wait = FIRST_S
        while not self._closing.wait(wait):
            try:
                self.look()
            except Exception as error:  # the session may close at any time
                log.debug("no look at the others' lists: %s", error)
            wait = POLL_S if self._spoken else 2 * FIRST_S

    def look(self) -> None:
        """Asks all for the number of their list, and evens out what differs."""
        for answer in ask(self._session, topics.fence(self._fleet, "*"), AskNumber()):
            if isinstance(answer, Number) and answer.name != self._keys.name:
                self._spoken = True
                self._even_out(answer)

    def settle(self, names: Collection[str], seconds: float) -> None:
        """Returns when these devices have the owner's list and use it, or have a run, or the time is over:
        a device that opens its session again must not do so while a run begins."""
        wanted = {d.name for d in self._keys.members.present if d.name in names}
        deadline = time.monotonic() + seconds
        settled: set[str] = set()
        while wanted - settled and time.monotonic() < deadline:
            for answer in ask(self._session, topics.fence(self._fleet, "*"), AskNumber()):
                if not isinstance(answer, Number):
                    continue
                current = answer.number >= self._number and not answer.pending
                if answer.busy or current:
                    settled.add(answer.name)
                elif not answer.pending:
                    self._even_out(answer)
            if wanted - settled:
                time.sleep(SETTLE_S)

    def _even_out(self, other: Number) -> None:
        """Gives the other what is newer here, or takes what is newer there. Nobody's answer keeps this member
        from the rest of the fleet."""
        try:
            self._settle_with(other)
        except WeftError as error:
            self._odd.warning("%s answers for itself with %s", other.name, error)

    def _settle_with(self, other: Number) -> None:
        key = topics.fence(self._fleet, other.name)
        if other.number < self._number:
            ask(self._session, key, TakeList(self._folder.members()))
        elif other.number > self._number and not self._keys.is_owner:
            self._introduce(key, other.name)
        if self._keys.is_owner and other.certificate:
            self._renew(key, other)

    def _introduce(self, key: str, other: str) -> None:
        from weft.runtime.keys import certificates

        name, now = self._keys.name, time.time()
        signed = Introduce.words(name, self._fleet, now)
        signature = certificates.sign(self._folder.read(f"{name}.key"), signed)
        own_certificate = self._folder.read(f"{name}.pem")
        question = Introduce(name, own_certificate, now, signature)
        for answer in ask(self._session, key, question):
            if not isinstance(answer, Verdict):
                continue
            if answer.members is not None:
                self._take(answer.members)
            elif self._proven(answer, own_certificate):
                self.refused = f"{other} refused {name}: {answer.words}"
                self._changed()
            else:
                self._odd.warning("%s refuses %s: %s", other, name, answer.words)

    def _proven(self, verdict: Verdict, certificate: bytes) -> bool:
        """Whether the owner said so: the word of another device does not end this one."""
        from weft.runtime.keys import certificates

        subject = certificates.subject_of(certificate)
        try:
            certificates.check_signature(
                self._folder.read("authority.pem"), revocation(subject), verdict.proof
            )
        except InputError:
            return False
        return True

    # --- taking -----------------------------------------------------------------------------------

    def _take(self, signed: SignedMembers) -> None:
        """Takes a newer list of the owner; InputError where it is not the owner's."""
        from weft.runtime.keys import certificates

        authority = self._folder.read("authority.pem")
        certificates.check_signature(authority, signed.body, signed.signature)
        members = signed.opened()
        if members.fleet != self._fleet:
            raise InputError(f"a list of fleet {members.fleet[:64]}")
        with self._guard:
            if members.number <= self._number:
                return
            self._number = members.number
            if self._folder.members().opened().number < members.number:
                self._folder.write_members(signed)
        self._judge_self(members)
        self._reopen()

    def _judge_self(self, members: Members) -> None:
        from weft.runtime.keys import certificates

        subject = certificates.subject_of(self._folder.read(f"{self._keys.name}.pem"))
        self.refused = members.verdict(subject, self._keys.name)

    def _take_certificate(self, certificate: bytes) -> None:
        from weft.runtime.keys import certificates

        certificates.check_issued(certificate, self._folder.read("authority.pem"))
        present = self._folder.read(f"{self._keys.name}.pem")
        certificates.check_same_key(certificate, present)
        if certificates.ends(certificate) > certificates.ends(present):
            self._folder.write(f"{self._keys.name}.pem", certificate)
            self._reopen()

    def _reopen(self) -> None:
        self._pending = True
        self._changed()

    def _renew(self, key: str, other: Number) -> None:
        """The owner renews the certificate of a device that still belongs to the fleet."""
        from weft.runtime.keys import certificates
        from weft.runtime.keys.owner import authority_of

        authority = authority_of(self._folder)
        certificates.check_issued(other.certificate, authority.certificate)
        subject = certificates.subject_of(other.certificate)
        if not self._folder.members().opened().verdict(subject, other.name):
            later = certificates.renewed(authority, other.certificate)
            ask(self._session, key, TakeCertificate(later))


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    if len(data) > MAX_MESSAGE:
        raise InputError(f"a message of {len(data)} bytes")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a message: {error}") from None
