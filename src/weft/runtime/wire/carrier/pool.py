"""Memory for payloads that is used again: fresh memory costs more than receiving into it, page by page.

    memory = pool.take(1_000_000)      # a memoryview; it comes back when nobody holds it any more

A tensor may share a payload's memory for as long as it likes. Python counts who holds a buffer, so the pool
hands out a buffer again only when it is the last one to hold it. One thread takes.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from numpy.typing import NDArray

SMALLEST = 32 * 1024  # smaller payloads are not worth it
MAX_BYTES = 32 << 20  # that the pool keeps
MAX_BUFFERS = 8  # of one size


class Pool:
    """Buffers by size. A run sends messages of a few sizes, again and again."""

    def __init__(self) -> None:
        self._buffers: dict[int, list[NDArray[np.uint8]]] = {}
        self.bytes = 0

    def take(self, size: int) -> memoryview:
        """Memory of this size, with anything in it."""
        if not size:
            return memoryview(b"")
        buffers = self._buffers.get(size, [])
        for place in range(len(buffers)):
            if _references(buffers, place) == _UNUSED:
                return memoryview(buffers[place].data).cast("B")
        made = torch.empty(size, dtype=torch.uint8).numpy()  # not cleared, as a bytearray would be
        if size >= SMALLEST and self.bytes + size <= MAX_BYTES and len(buffers) < MAX_BUFFERS:
            self._buffers.setdefault(size, []).append(made)
            self.bytes += size
        return memoryview(made.data).cast("B")

    def clear(self) -> None:
        """Forgets all buffers. Whoever holds one keeps it."""
        self._buffers, self.bytes = {}, 0


def _references(buffers: list[NDArray[np.uint8]], place: int) -> int:
    return sys.getrefcount(buffers[place])


# Of a buffer that only the pool holds. Some versions of Python count the references of a running function,
# some do not.
_UNUSED = _references([np.empty(1, np.uint8)], 0)
