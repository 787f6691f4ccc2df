"""A message over several links travels in pieces, which are put together at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from weft.runtime.wire.frames import Buffer, Header

MAX_PARTIAL = 256  # messages of which some pieces are still missing


class Unfinished:
    """The messages of one run or plan of which some pieces are still missing. Zenoh's thread and the door's
    may have pieces of the same message. `note` counts what was wrong."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._guard = threading.Lock()
        self._messages: dict[tuple[Any, ...], Pieces] = {}

    @property
    def size(self) -> int:
        """Bytes that wait here."""
        return sum(pieces.size for pieces in list(self._messages.values()))

    def add(self, header: Header, payload: Buffer) -> bytes | None:
        """The whole message, if this was its last piece."""
        key = (header.source, *header.key)
        with self._guard:
            if key not in self._messages and len(self._messages) >= MAX_PARTIAL:
                self._note("bad")
                return None
            pieces = self._messages.setdefault(key, Pieces(header))
            if not pieces.add(header, payload):
                return None
            del self._messages[key]
        return pieces.joined()


class Pieces:
    """The pieces of one message, until all have arrived. They may overtake each other where a line breaks
    and Zenoh carries the rest."""

    def __init__(self, header: Header) -> None:
        self._parts: dict[int, Buffer] = {}
        self._bytes, self._pieces = header.bytes, header.pieces
        self.size = 0

    def add(self, header: Header, payload: Buffer) -> bool:
        new = header.piece not in self._parts and header.pieces == self._pieces
        if new and self.size + len(payload) <= self._bytes:
            self._parts[header.piece] = payload
            self.size += len(payload)
        return len(self._parts) == self._pieces

    def joined(self) -> bytes:
        return b"".join(part for _, part in sorted(self._parts.items()))
