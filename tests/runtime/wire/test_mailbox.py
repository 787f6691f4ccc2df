"""Letters wait for who asks for them; a wait ends in time, with words."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from weft.errors import WeftError
from weft.runtime.wire.frames import Header
from weft.runtime.wire.mailbox import Cancelled, Letter, Mailbox

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


def test_cancelling_wakes_who_waits_and_clearing_begins_anew() -> None:
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
    box.clear()
    box.put(letter(b"new run"))
    assert box.take(KEY, 1.0, who).payload == b"new run"


def test_a_letter_is_not_handed_over_before_its_emulated_latency_is_over() -> None:
    box = Mailbox()
    due = time.monotonic() + 0.05
    box.put(letter(due=due))
    box.take(KEY, 1.0, str)
    assert time.monotonic() >= due
