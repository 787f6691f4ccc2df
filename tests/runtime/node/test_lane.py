"""What a node does with queries before it looks at them: none waits for ever behind a flood of others."""

from __future__ import annotations

import threading

import pytest

from weft.runtime.node import lane
from weft.runtime.node.lane import MANY, Intake, Lane
from weft.runtime.wire.limits import memory_bytes


class Question:
    """As much of a query as an intake sees."""

    def __init__(self, name: str, size: int = 1) -> None:
        self.name, self.payload, self.dropped = name, bytes(size), False

    def drop(self) -> None:
        self.dropped = True


def names(intake: Intake, count: int) -> list[str]:
    return [intake.get(0.0).name for _ in range(count)]


def test_a_flood_of_one_kind_leaves_room_for_another_and_they_take_turns() -> None:
    """Seen: a member that asked for echoes without end pushed out the owner's `hello` and `end`."""
    intake = Intake(most=100)
    flood = [Question(f"echo {i}") for i in range(500)]
    for question in flood:
        intake.put("echo", question)
    assert [q.dropped for q in flood] == [False] * 100 + [True] * 400
    for name in ("hello", "end"):
        intake.put("control", Question(name))
    assert names(intake, 4) == ["echo 0", "hello", "echo 1", "end"]


@pytest.mark.parametrize("many", [False, True])
def test_what_ends_a_run_overtakes_a_flood_but_nothing_else(many: bool) -> None:
    """Whoever reaches an open node can ask without end; the run's key says who may end it."""
    intake = Intake(most=200, goes_first=lambda query: query.name == "end")
    before = 300 if many else MANY - 1
    for i in range(before):
        intake.put("control", Question(f"hello {i}"))
    end = Question("end")
    intake.put("control", end)
    assert not end.dropped
    assert (names(intake, 1) == ["end"]) == many
    for _ in range(2 * MANY):  # its own room has a limit too
        intake.put("control", Question("end"))
    left = names(intake, 100)
    assert left.count("end") <= MANY + 1


def test_bytes_have_a_limit_and_come_free_again() -> None:
    intake = Intake(most_bytes=100)
    large, small = Question("large", 90), Question("small", 20)
    intake.put("control", large)
    intake.put("control", small)
    assert small.dropped
    assert intake.get(0.0) is large
    intake.put("control", small)
    assert intake.get(0.0) is small
    assert intake.get(0.0) is None


def test_who_waits_for_a_query_is_woken_up() -> None:
    intake, came = Intake(), []
    thread = threading.Thread(target=lambda: came.append(intake.get(60.0)))
    thread.start()
    question = Question("hello")
    intake.put("control", question)
    thread.join()
    assert came == [question]


def test_a_command_that_fails_does_not_end_the_thread_of_the_others() -> None:
    """A node whose thread had ended answered `hello`, and nothing else, for ever."""
    lane = Lane(lambda order, query: None, lambda order: lambda query: None)
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("the session was closed")

    lane.put_own(fail)
    lane.put_own(done.set)
    assert done.wait(10.0)
    lane.close()


def test_questions_of_other_devices_have_little_room() -> None:
    """They are empty, so a large one is an attack: it waits for nobody's memory."""
    intake = Intake()
    large = [Question("large", 20 << 20), *(Question(f"{i}", 4 << 20) for i in range(6))]
    for question in large:
        intake.put("echo", question)
    assert [q.dropped for q in large] == [True, *[False] * 4, True, True]


def test_what_waits_is_small_beside_this_machine_s_memory() -> None:
    """Seen: 2 GiB of commands for each kind, also on a device with 1 GiB."""
    assert memory_bytes() // 8 >= lane.MAX_BYTES
