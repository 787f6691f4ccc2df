"""Keeps the memory of a minibatch for the next one, and gives it back when a run is over.

    keep_memory()        # once, when a node starts
    give_back()          # after a run

A minibatch frees its tensors, and the next one needs as many. The C library gives large free blocks back to
the kernel, and the kernel hands out each page anew and cleared. LeNet-5 with 512 samples: up to 12,000 pages
in a minibatch, which then takes 85 ms in place of 50. It depends on where in memory a thread happens to work,
so that the same plan has another speed in each run.
"""

from __future__ import annotations

import ctypes
from functools import cache

TRIM, MAPPED, ARENAS = -1, -3, -8  # the numbers of mallopt
LARGEST = 32 << 20  # bytes of a block that stays in the heap; the C library allows no more
FREE = 1 << 30  # bytes that may lie free at the heap's end


def keep_memory() -> bool:
    """From now on free memory stays in this process. All threads share one heap: what one thread has freed
    serves the next one. False where the C library cannot do it."""
    library = _library()
    if library is None:
        return False
    settings = ((MAPPED, LARGEST), (TRIM, FREE), (ARENAS, 1))
    return all([library.mallopt(number, value) == 1 for number, value in settings])


def give_back() -> None:
    """Gives the kernel what lies free."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)


@cache
def _library() -> ctypes.CDLL | None:
    """The C library of this process, if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except (OSError, TypeError):  # another system
        return None
