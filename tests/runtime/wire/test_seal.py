"""The key of a run: seals that only its holder makes, and numbers that come once."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.runtime.wire.frames import BadMessage
from weft.runtime.wire.seal import (
    COMMAND,
    REPLY,
    REPORT,
    SENDERS,
    WINDOW,
    Numbers,
    Replays,
    RunSecret,
    check_seal,
    header_is_sealed,
    seal_header,
    sealed,
    split_header,
)


@given(st.binary(max_size=300), st.integers(0, 2**64 - 1), st.integers(0, 330), st.integers(1, 255))
def test_a_seal_is_of_one_key_one_use_one_number_and_these_bytes(
    data: bytes, count: int, place: int, change: int
) -> None:
    secret = RunSecret()
    key = secret.keys("pi").device
    seal = sealed(key, REPORT, data, count)
    assert check_seal(key, REPORT, data, seal) == count
    whole = bytearray(data + seal)
    whole[place % len(whole)] ^= change
    wrong = [
        (secret.keys("nuc").device, REPORT, data, seal),
        (secret.tensors, REPORT, data, seal),
        (RunSecret().keys("pi").device, REPORT, data, seal),
        (key, COMMAND, data, seal),
        (key, REPLY, data, seal),
        (key, REPORT, data, seal[:-1]),
        (key, REPORT, data, b""),
        (key, REPORT, bytes(whole[: len(data)]), bytes(whole[len(data) :])),
    ]
    for other in wrong:
        with pytest.raises(BadMessage, match="run's key"):
            check_seal(*other)


def test_of_long_data_every_byte_and_the_length_are_covered() -> None:
    """Before, a byte in the middle could be changed."""
    key, data = RunSecret().keys("pi").device, bytes(1 << 20)
    seal = sealed(key, REPORT, data, 1)
    assert check_seal(key, REPORT, data, seal) == 1
    middle = data[:500_000] + b"x" + data[500_001:]
    for other in (b"x" + data[1:], data[:-1] + b"x", data[:-1], data + b"x", data + b"\0", middle):
        with pytest.raises(BadMessage):
            check_seal(key, REPORT, other, seal)


def test_a_header_is_sealed_with_the_run_s_key() -> None:
    key = RunSecret().tensors
    header, seal = split_header(seal_header(key, b"header"))
    assert header == b"header"
    assert header_is_sealed(key, header, seal)
    assert not header_is_sealed(RunSecret().tensors, header, seal)
    assert not header_is_sealed(key, b"Header", seal)
    assert not header_is_sealed(key, *split_header(b"short"))


@given(st.lists(st.integers(0, 3 * WINDOW), max_size=200))
def test_no_number_is_taken_twice_and_none_in_the_window_is_lost(counts: list[int]) -> None:
    replays, taken = Replays(), set()
    for count in counts:
        newest = max(taken, default=0)
        if replays.take("pi", count):
            assert count not in taken
            taken.add(count)
        else:
            assert count in taken or newest - count >= WINDOW


def test_senders_and_their_lives_do_not_disturb_each_other() -> None:
    replays = Replays()
    for numbers in (Numbers(), Numbers()):  # the device was started again
        count = numbers.next()
        assert replays.take("pi", count)
        assert replays.take("nuc", count)
        assert not replays.take("pi", count)
    assert sum(replays.take("mad", life << 40) for life in range(1000)) == 64


def test_the_names_of_senders_do_not_fill_the_memory() -> None:
    """The name comes with the message: a device of the run can make up any number of them."""
    replays = Replays()
    taken = [replays.take(f"s{i}", 1) for i in range(SENDERS + 100)]
    assert sum(taken) == SENDERS
    assert replays.take("s0", 2)


class Meeting(dict[tuple[str, int], int]):
    """The newest numbers; who has read one waits for the other thread, if that can come."""

    def get(self, life: tuple[str, int], default: int | None = None) -> int | None:  # type: ignore[override]
        newest = super().get(life, default)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait(0.3)
        return newest

    both = threading.Barrier(2)


def test_two_threads_that_take_numbers_of_one_sender_do_not_confuse_them() -> None:
    """When a line is opened, or breaks, a sender's messages come by two threads. A late one was taken for a
    replay, and dropped; and a replay was taken for a message."""
    replays = Replays()
    assert replays.take("pi", 10)
    newest = replays._newest
    replays._newest = Meeting(newest)
    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(lambda number: replays.take("pi", number), (12, 11)))
    replays._newest = dict(replays._newest)
    assert [replays.take("pi", number) for number in (12, 11, 10)] == [False] * 3
    assert [replays.take("pi", number) for number in (9, 8, 13)] == [True] * 3
