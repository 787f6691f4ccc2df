"""Only who has asked in a run gets a connection, and one ticket is good for one connection."""

from __future__ import annotations

import msgspec
import pytest

from weft.runtime.wire.carrier import tickets
from weft.runtime.wire.carrier.tickets import Tickets
from weft.runtime.wire.frames import BadMessage

KEY = b"k" * 32


def test_a_ticket_is_used_once() -> None:
    book = Tickets()
    given = book.give("pi")
    shown = tickets.greeting(given.id, given.secret)
    assert book.take(shown) == given
    with pytest.raises(BadMessage, match="no ticket"):
        book.take(shown)


def test_a_greeting_without_the_secret_is_refused() -> None:
    book = Tickets()
    given = book.give("pi")
    for shown in (tickets.greeting(given.id, b"x" * 32), bytes(tickets.GREETING_BYTES)):
        with pytest.raises(BadMessage, match="no ticket"):
            book.take(shown)


def test_old_tickets_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Tickets()
    kept = [book.give(f"device{i}")[:2] for i in range(tickets.MAX_TICKETS + 1)]
    with pytest.raises(BadMessage):  # the oldest was dropped
        book.take(tickets.greeting(*kept[0]))
    book.take(tickets.greeting(*kept[1]))
    monkeypatch.setattr(tickets, "TICKET_S", -1.0)
    with pytest.raises(BadMessage):
        book.take(tickets.greeting(*book.give("pi")[:2]))
    book.clear()
    with pytest.raises(BadMessage):
        book.take(tickets.greeting(*kept[2]))


def test_a_question_proves_the_key_of_the_run() -> None:
    question = tickets.unpack_question(tickets.ask("run", "pi", "nuc", KEY))
    assert tickets.is_proven(question, "nuc", KEY)
    assert not tickets.is_proven(question, "nuc", b"l" * 32)
    assert not tickets.is_proven(question, "cloud", KEY)


def test_one_device_cannot_push_out_the_tickets_of_others() -> None:
    book = Tickets()
    others = book.give("nuc")
    for _ in range(2 * tickets.MAX_TICKETS):
        newest = book.give("pi")
    for given in (others, newest):
        assert book.take(tickets.greeting(given.id, given.secret)) == given
    assert len(book._given) == tickets.MAX_OF_ONE - 1


def test_a_door_knows_whether_it_expects_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Tickets()
    assert not book.expects_somebody
    given = book.give("pi")
    assert book.expects_somebody
    book.take(tickets.greeting(given.id, given.secret))
    assert not book.expects_somebody
    monkeypatch.setattr(tickets, "TICKET_S", -1.0)
    book.give("pi")
    assert not book.expects_somebody


def test_a_ticket_of_somebody_without_the_run_s_key_is_no_ticket() -> None:
    """On an open network anybody can answer a question before the device that it is for."""
    question = tickets.unpack_question(tickets.ask("run", "pi", "nuc", KEY))
    made = tickets.Ticket("s", (("::", 7),), bytes(16), bytes(32), False)
    genuine = tickets.unpack_ticket(tickets.pack_ticket(made, question, "nuc", KEY))
    assert tickets.is_of_run(genuine, "run", "pi", "nuc", KEY)
    assert not tickets.is_of_run(genuine, "other", "pi", "nuc", KEY)
    assert not tickets.is_of_run(genuine, "run", "pi", "cloud", KEY)
    for changed in (
        msgspec.structs.replace(genuine, session="mine"),
        msgspec.structs.replace(genuine, ports=(("::", 8),)),
        msgspec.structs.replace(genuine, encrypted=True),
        tickets.unpack_ticket(tickets.pack_ticket(made, question, "nuc", b"l" * 32)),
    ):
        assert not tickets.is_of_run(changed, "run", "pi", "nuc", KEY)


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"\x93\x01\x02\x03", bytes(5000)])
def test_any_other_bytes_are_no_question_and_no_ticket(data: bytes) -> None:
    with pytest.raises(BadMessage):
        tickets.unpack_question(data)
    with pytest.raises(BadMessage):
        tickets.unpack_ticket(data)


def test_a_ticket_with_impossible_values_is_refused() -> None:
    def packed(port: int = 7, size: int = tickets.SECRET_BYTES) -> bytes:
        ticket_id = bytes(tickets.ID_BYTES)
        made = tickets.Ticket("s", (("::", port),), ticket_id, bytes(size), True)
        return tickets.pack_ticket(made, tickets.Question("run", "pi", b""), "nuc", KEY)

    assert tickets.unpack_ticket(packed()).ports == (("::", 7),)
    for wrong in (packed(port=0), packed(port=65536), packed(size=31)):
        with pytest.raises(BadMessage):
            tickets.unpack_ticket(wrong)
