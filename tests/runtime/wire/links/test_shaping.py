"""Emulated channels: first come first served, at exactly their rate, shared by processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.runtime.wire.links import shaping
from weft.runtime.wire.links.shaping import Clock, OwnClock, SharedClock, sleep_until

MESSAGES = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 2)), min_size=1, max_size=20)


@given(messages=MESSAGES)
def test_messages_leave_one_after_the_other_and_a_busy_channel_never_pauses(
    messages: list[tuple[float, float]],
) -> None:
    clock, now, free = OwnClock(), 100.0, 0.0
    for gap, seconds in messages:
        now += gap
        start, end = clock.book(now, seconds)
        assert start == max(now, free)  # as soon as it is ready and the channel is free
        assert end == start + seconds  # at exactly the rate
        free = end


@pytest.mark.parametrize("shared", [False, True])
def test_waking_late_does_not_lower_the_rate(tmp_path: Path, shared: bool) -> None:
    clock: Clock = SharedClock(tmp_path / "air") if shared else OwnClock()
    first = clock.book(10.0, 1.0)
    assert first == (10.0, 11.0)
    assert [clock.book(10.0, 1.0)[1] for _ in range(5)] == [12.0, 13.0, 14.0, 15.0, 16.0]


BOOKER = """
import sys
from pathlib import Path
from weft.runtime.wire.links.shaping import SharedClock
clock = SharedClock(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(200):
    print(*clock.book(50.0, 0.25))
"""


def test_a_medium_is_shared_by_processes_and_never_booked_twice(tmp_path: Path) -> None:
    path = tmp_path / "air"
    bookers = [
        subprocess.Popen(
            [sys.executable, "-c", BOOKER, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for booker in bookers:
        assert booker.stdout is not None
        assert booker.stdout.readline() == "ready\n"
    own = SharedClock(path)
    for booker in bookers:
        assert booker.stdin is not None
        booker.stdin.write("go\n")
        booker.stdin.flush()
    booked = [own.book(50.0, 0.25) for _ in range(200)]
    for booker in bookers:
        out, _ = booker.communicate(timeout=60)
        booked += [tuple(map(float, line.split())) for line in out.splitlines()]  # type: ignore[misc]
    own.close()
    assert sorted(start for start, _ in booked) == [50.0 + 0.25 * i for i in range(600)]


def test_sleeping_ends_no_earlier_than_said_and_not_at_all_for_the_past() -> None:
    moment = time.monotonic() + 0.02
    sleep_until(moment)
    assert time.monotonic() >= moment
    sleep_until(moment - 100)
    sleep_until(float("nan"))


def test_a_medium_is_shared_by_threads_and_never_booked_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway has a channel, and a thread, for each member. The lock of a file does not keep out threads of
    the same process: both read the same moment, and the medium carried two messages at once."""
    clocks = [SharedClock(tmp_path / "air") for _ in range(2)]
    unpack, both = shaping.struct.unpack, threading.Barrier(2)

    def read(form: str, data: bytes) -> tuple[float, ...]:
        moment: tuple[float, ...] = unpack(form, data)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.3)
        return moment

    monkeypatch.setattr(shaping, "struct", SimpleNamespace(unpack=read, pack=shaping.struct.pack))
    with ThreadPoolExecutor(2) as threads:
        booked = list(threads.map(lambda clock: clock.book(50.0, 1.0), clocks))
    assert sorted(booked) == [(50.0, 51.0), (51.0, 52.0)]
    for clock in clocks:
        clock.close()
