"""A message over several links travels in pieces, which are put together at its end."""

from __future__ import annotations

from weft.runtime.wire.frames import Buffer, Header


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
