"""From a neighbour's name to a line: ask its node over Zenoh for a ticket, then connect.

    opener = LineOpener(session, group, "pi", run, run_key)
    lines = opener.open(["nuc", "cloud"])          # a Line each, or the reason why there is none

A line goes to the address that Zenoh's own connection with the neighbour has, and to no other one. So it
takes the same way through the network, and an address in a ticket is never believed.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import zenoh

from weft.errors import WeftError
from weft.runtime.wire import topics
from weft.runtime.wire.carrier.door import Door
from weft.runtime.wire.carrier.line import Line, LineLost, connect
from weft.runtime.wire.carrier.tickets import (
    Ticket,
    ask,
    is_of_run,
    is_proven,
    pack_ticket,
    unpack_question,
    unpack_ticket,
)
from weft.runtime.wire.frames import BadMessage

TICKET_S = 2.0  # for the answers of all neighbours
OPEN_S = 5.0  # for all lines of a device; who is not reached by then gets its tensors over Zenoh
MAX_ANSWERS = 64  # to one question that are read
EVERYWHERE = ("::", "0.0.0.0")


class LineOpener:
    """Opens the lines of one device in one run."""

    def __init__(self, session: Any, group: str, name: str, run: str, run_key: bytes) -> None:
        self._session, self._group, self._name = session, group, name
        self._run, self._run_key = run, run_key

    def open(self, neighbours: Sequence[str]) -> dict[str, Line | WeftError]:
        """A line to each neighbour, or why there is none."""
        deadline = time.monotonic() + OPEN_S
        asked = {name: self._ask(name) for name in neighbours}
        opened: dict[str, Line | WeftError] = {}
        until = time.monotonic() + TICKET_S
        for name, answers in asked.items():
            try:
                ticket = self._ticket(name, answers, until)
                if time.monotonic() > deadline:
                    raise LineLost(f"not reached within {OPEN_S:g} s")
                opened[name] = self._connect(ticket)
            except WeftError as error:
                opened[name] = error
        return opened

    def one(self, neighbour: str) -> Line:
        """A line to one neighbour. WeftError where there is none."""
        opened = self.open([neighbour])[neighbour]
        if isinstance(opened, WeftError):
            raise opened
        return opened

    def _ask(self, neighbour: str) -> queue.SimpleQueue[Any]:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._session.get(
            topics.door(self._group, neighbour, self._name),
            zenoh.handlers.Callback(answers.put, partial(answers.put, None), indirect=False),
            payload=ask(self._run, self._name, neighbour, self._run_key),
            timeout=TICKET_S,
            # Of everybody, and at once: one of the answers may be a stranger's.
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.QueryConsolidation(zenoh.ConsolidationMode.NONE),
        )
        return answers

    def _ticket(self, neighbour: str, answers: queue.SimpleQueue[Any], until: float) -> Ticket:
        """The first genuine ticket among the answers."""
        why = "it takes no connections for tensors (no answer to the question)"
        for _ in range(MAX_ANSWERS):
            try:
                reply = answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if reply is None:
                break
            if reply.ok is None:
                why = reply.err.payload.to_bytes()[:300].decode(errors="replace")
                continue
            try:
                ticket = unpack_ticket(reply.ok.payload.to_bytes())
            except BadMessage as error:
                why = f"its answer cannot be read: {error}"
                continue
            if is_of_run(ticket, self._run, self._name, neighbour, self._run_key):
                return ticket
            why = "the answer does not come from a device of this run"
        raise LineLost(why)

    def _connect(self, ticket: Ticket) -> Line:
        hosts = [
            _host(str(link.dst))
            for link in self._session.info.links()
            if str(link.zid) == ticket.session
        ]
        for listens, port in ticket.ports:
            for host in hosts:
                if listens in EVERYWHERE or listens == host:
                    return connect(host, port, ticket, self._run_key)
        there = ", ".join(hosts) or "no address: Zenoh reaches it through another node"
        raise LineLost(f"its door is not at the address that Zenoh uses ({there})")


def answer(query: Any, door: Door, name: str, run: str, run_key: bytes) -> bool:
    """Answers a question with a ticket. False if whoever asks has no part in the run."""
    try:
        question = unpack_question(query.payload.to_bytes() if query.payload else b"")
        if str(query.key_expr).rpartition("/")[2] != question.source:
            raise BadMessage("it is in the name of another device")
    except BadMessage as error:
        query.reply_err(f"not a question: {error}"[:300])
        return False
    if not run or question.run != run or not is_proven(question, name, run_key):
        query.reply_err(f"{name} does not take part in this run")
        return False
    given = door.tickets.give(question.source)
    ticket = Ticket(door.session, door.ports, given.id, given.secret, door.encrypted)
    query.reply(query.key_expr, pack_ticket(ticket, question, name, run_key))
    return True


def _host(locator: str) -> str:
    """The host of "tcp/127.0.0.1:7447" or "tls/[::1]:7447"; an IPv4 address in an IPv6 one is itself."""
    host = locator.partition("/")[2].rpartition(":")[0].strip("[]")
    return host.removeprefix("::ffff:")
