"""Letters wait for who asks for them; a wait ends in time, with words."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from weft.errors import WeftError
from weft.runtime.wire import mailbox
from weft.runtime.wire.frames import Header
from weft.runtime.wire.mailbox import Cancelled, Letter, Mailbox
from weft.runtime.wire.seal import LIFE_BITS

KEY = (0, 7, "act", 2, 1, 0)


def letter(payload: bytes = b"x", step: int = 7, due: float = 0.0) -> Letter:
    return Letter(Header("r", 0, step, "act", 2, 1, "pi", "nuc", len(payload), due=due), payload)


def test_the_first_letter_counts_and_a_double_is_dropped() -> None:
    box = Mailbox()
    assert box.put(letter(b"first"))
    assert not box.put(letter(b"second"))
    assert box.put(letter(b"other", step=8))
    assert box.dropped == 1
    assert box.take(KEY, 1.0, str).payload == b"first"


def test_a_mailbox_holds_no_more_than_it_may() -> None:
    """A header takes memory too: letters without a payload count."""
    box = Mailbox(max_bytes=letter(b"123456").size + letter(b"").size - 1)
    assert box.put(letter(b"123456"))
    assert not box.put(letter(b"", step=9))
    assert not box.put(letter(b"123456", step=8))
    box.take(KEY, 1.0, str)
    assert box.put(letter(b"123456", step=8))


def test_a_letter_that_comes_while_somebody_waits_is_handed_over() -> None:
    box = Mailbox()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(box.take, KEY, 30.0, str)
        box.put(letter(b"late"))
        assert waiting.result(30.0).payload == b"late"


def test_a_wait_past_its_deadline_says_for_whom_and_how_long() -> None:
    with pytest.raises(
        WeftError, match=r"waited 0\.05 s for act2 of minibatch 7 from pi.*deadline"
    ):
        Mailbox().take(KEY, 0.05, lambda: "act2 of minibatch 7 from pi")


def test_cancelling_wakes_who_waits_and_whoever_comes_later() -> None:
    box = Mailbox()
    asked = threading.Event()

    def who() -> str:
        return "nobody"

    def wait() -> Letter:
        asked.set()
        return box.take(KEY, 60.0, who)

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait)
        asked.wait(10.0)
        box.cancel("cloud is gone")
        with pytest.raises(Cancelled, match="cloud is gone"):
            waiting.result(30.0)
    with pytest.raises(Cancelled):
        box.take(KEY, 60.0, who)
    box.put(letter())
    box.drop()
    assert not box.bytes
    with pytest.raises(Cancelled):  # the next run has another mailbox
        box.take(KEY, 60.0, who)


def test_a_letter_is_not_handed_over_before_its_emulated_latency_is_over() -> None:
    box = Mailbox()
    due = time.monotonic() + 0.05
    box.put(letter(due=due))
    box.take(KEY, 1.0, str)
    assert time.monotonic() >= due


def newest(step: int, number: int, due: float = 0.0) -> Letter:
    header = Header("r", 0, step, "row", 2, 1, "pi", "nuc", 1, due=due, count=number)
    return Letter(header, bytes(1))


NAME = (0, "row", 2, 1, 0)


def test_an_older_letter_does_not_replace_the_newest() -> None:
    """Where a line breaks or is opened, messages overtake each other."""
    box = Mailbox()
    box.keep_newest(NAME)
    assert box.put(newest(8, number=12))
    assert not box.put(newest(7, number=11))
    came = box.newest(NAME)
    assert came is not None
    assert came.header.step == 8
    assert not box.put(newest(7, number=10))  # nor when the newest was taken
    assert box.newest(NAME) is None
    assert box.put(newest(3, number=(9 << LIFE_BITS) + 1))  # its device was started again
    assert box.bytes == newest(3, 1).size


def test_letters_on_their_way_do_not_hide_one_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where messages are sent more often than the emulated link takes for one, none was ever due: each was
    replaced by the next one before."""
    now = [0.0]
    monkeypatch.setattr(mailbox, "time", SimpleNamespace(monotonic=lambda: now[0]))
    box = Mailbox()
    box.keep_newest(NAME)
    seen = []
    for step in range(12):
        now[0] = step * 0.02
        box.put(newest(step, number=step + 1, due=now[0] + 0.05))
        came = box.newest(NAME) if step % 2 else None
        seen += [came.header.step] if came is not None else []
    assert seen == [0, 2, 4, 6, 8]
    now[0] = 1.0
    assert box.newest(NAME) is not None
    assert box.bytes == 0
