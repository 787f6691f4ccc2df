"""Free memory stays with a node until a run is over, where there is plenty of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from weft.runtime.node import memory

# What a minibatch does: a thread takes large blocks, writes into them and frees them.
# Results: how many pages the kernel handed out in each round, and how many the process has at the end.
ROUNDS = """
import json, resource, sys, threading
from weft.runtime.node.memory import give_back, keep_memory, save_memory
assert save_memory()
if "keep" in sys.argv:
    assert keep_memory(1e12)

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def held():
    return int(open("/proc/self/statm").read().split()[1])

handed_out = []
def minibatches():
    for _ in range(4):
        before = pages()
        blocks = [bytearray(24 << 20) for _ in range(3)]
        del blocks
        handed_out.append(pages() - before)

for _ in range(2):  # each run has a thread of its own
    thread = threading.Thread(target=minibatches)
    thread.start()
    thread.join()
kept = held()
give_back()
print(json.dumps([handed_out, kept, held()]))
"""
PAGES = 3 * (24 << 20) // 4096  # of a round, if all are new

needs_glibc = pytest.mark.skipif(
    memory._library() is None, reason="another C library: nothing is kept there"
)


def _rounds(*arguments: str) -> tuple[list[int], int, int]:
    done = subprocess.run(
        [sys.executable, "-c", ROUNDS, *arguments], capture_output=True, check=True
    )
    handed_out, kept, left = json.loads(done.stdout)
    return handed_out, kept, left


@needs_glibc
def test_a_minibatch_uses_the_memory_of_the_one_before_also_in_another_thread() -> None:
    first, *later = _rounds("keep")[0]
    assert first > PAGES / 2
    assert max(later) < PAGES / 20


@needs_glibc
def test_where_memory_is_short_free_blocks_go_back_at_once() -> None:
    """Kept blocks of many sizes took up to twice what a plan was said to need."""
    assert min(_rounds()[0]) > PAGES / 2
    assert memory.keep_memory(0.0) is False  # the system does not say
    assert memory.keep_memory(2.0 * memory.peak_bytes()) is False


@pytest.mark.parametrize("name", memory.DECIDED)
def test_settings_of_the_user_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1048576")
    assert memory.save_memory() is False
    assert memory.keep_memory(1e15) is False


@needs_glibc
def test_after_a_run_the_memory_is_given_back() -> None:
    _, kept, left = _rounds("keep")
    assert left < kept - PAGES / 2


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    none: Callable[[], None] = lambda: None  # noqa: E731
    monkeypatch.setattr(memory, "_library", none)
    assert memory.save_memory() is False
    assert memory.keep_memory(1e15) is False
    memory.give_back()
