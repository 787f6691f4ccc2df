"""Keeps the memory of a minibatch for the next one where there is room, and gives it back after a run.

    save_memory()           # once, when a node starts
    keep_memory(free)       # after the first minibatches of a run, with the bytes that are free here
    give_back()             # after a run

A minibatch frees its tensors, and the next one needs as many. The C library gives large free blocks back to
the kernel, and the kernel hands out each page anew and cleared. LeNet-5 with 512 samples: up to 33,000 pages
in a minibatch, which then takes 90 ms in place of 52. If all free blocks are kept, blocks of different sizes
lie between each other, and a process comes to hold up to twice what its tensors need. A plan that just fits
would then not fit. So memory is kept only where there is plenty.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

TRIM, MAPPED, ARENAS = -1, -3, -8  # the numbers of mallopt
# (bytes from which a block is the kernel's own when it is freed, bytes that may lie free at the heap's end)
SAVING = (128 << 10, 128 << 10)
KEEPING = (32 << 20, 1 << 30)  # of the first the C library allows no more
PLENTY = 4  # times the largest size that this process has had must be free
# Whoever starts a node with one of these has decided already.
DECIDED = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def save_memory() -> bool:
    """From now on large free blocks go back to the kernel. All threads share one heap: what one thread has
    freed serves the next one. False where the C library cannot do it, or where the user has decided."""
    return _set(*SAVING)


def keep_memory(free: float) -> bool:
    """From now on free memory stays in this process, if there is plenty: `free` bytes that programs may still
    take here. False where there is not, or where the C library cannot do it."""
    return 0 < PLENTY * peak_bytes() <= free and _set(*KEEPING)


def give_back() -> None:
    """Gives the kernel what lies free, and keeps nothing from now on."""
    library = _library()
    if library is not None:
        save_memory()
        library.malloc_trim(0)


def peak_bytes() -> int:
    """The largest size that this process has had; 0 where the system does not say."""
    return status_bytes("VmHWM")


def status_bytes(key: str) -> int:
    """Bytes of a line of /proc/self/status; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) * 1024 for row in lines if row.startswith(key + ":")), 0)


def _set(mapped: int, trim: int) -> bool:
    library = _library()
    if library is None or any(name in os.environ for name in DECIDED):
        return False
    settings = ((MAPPED, mapped), (TRIM, trim), (ARENAS, 1))
    return all([library.mallopt(number, value) == 1 for number, value in settings])


@cache
def _library() -> ctypes.CDLL | None:
    """The C library of this process, if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except (OSError, TypeError):  # another system
        return None
