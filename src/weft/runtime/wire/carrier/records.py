"""How a message looks on a connection: two lengths, the header, the payload.

    record = Sealer(key).record(header, views)         # buffers for `sendmsg`, until the next record
    opener = Opener(key); opener.header(...), opener.payload(...)

Where the fleet has keys, header and payload are encrypted with AES-256-GCM, each under a number of its own.
The header also covers the two lengths. So a receiver knows that they are genuine before it takes memory for
the payload. Without keys both travel as they are; the header carries the run's seal in both cases.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

from weft.runtime.wire.carrier.pool import Pool
from weft.runtime.wire.frames import MAX_HEADER, MAX_PAYLOAD, BadMessage, Buffer

LENGTHS = struct.Struct("<II")  # of the header and of the payload, in clear
TAG_BYTES = 16  # that encryption adds to each of the two
MAX_SEALED_HEADER = MAX_HEADER + 16  # with the run's seal
MAX_KEPT = 8 << 20  # bytes that a sender keeps for its next message


def lengths_of(data: Buffer) -> tuple[int, int]:
    """(header, payload). BadMessage for lengths that no message has."""
    header, payload = LENGTHS.unpack_from(data)
    if header > MAX_SEALED_HEADER or payload > MAX_PAYLOAD:
        raise BadMessage(f"announces a header of {header} and a payload of {payload} bytes")
    return header, payload


def connection_key(secret: bytes, run_key: bytes) -> bytes:
    """The key of one connection: only who has the ticket and is part of the run can make it."""
    return hashlib.blake2b(secret, key=run_key, digest_size=32, person=b"weft line").digest()


class Sealer:
    """Writes the records of one connection. Without a key they are in clear."""

    def __init__(self, key: bytes = b"") -> None:
        self._cipher, self._numbers = _cipher(key), _Numbers()
        self._memory = memoryview(b"")  # for what is encrypted; used again

    def record(self, header: bytes, views: Sequence[Buffer]) -> list[Buffer]:
        """The buffers of a message, which hold until the next call. In clear the payload is not copied."""
        size = sum(map(len, views))
        lengths = LENGTHS.pack(len(header), size)
        if self._cipher is None:
            return [lengths + header, *views]
        sealed = self._cipher.encrypt(self._numbers.next(), header, lengths)
        payload = views[0] if len(views) == 1 else b"".join(views)
        if not hasattr(self._cipher, "encrypt_into"):  # an older `cryptography`
            return [lengths + sealed, self._cipher.encrypt(self._numbers.next(), payload, None)]
        encrypted = self._room_for(size + TAG_BYTES)
        self._cipher.encrypt_into(self._numbers.next(), payload, None, encrypted)
        return [lengths + sealed, encrypted]

    def _room_for(self, size: int) -> memoryview:
        if size > len(self._memory):
            made = memoryview(bytearray(size))
            if size > MAX_KEPT:
                return made
            self._memory = made
        return self._memory[:size]


class Opener:
    """Reads the records of one connection."""

    def __init__(self, key: bytes = b"") -> None:
        self._cipher, self._numbers = _cipher(key), _Numbers()
        self.tag_bytes = TAG_BYTES if key else 0

    def header(self, data: Buffer, lengths: Buffer) -> bytes:
        """The header. BadMessage where it, or a length, has been changed."""
        if self._cipher is None:
            return bytes(data)
        return bytes(self._opened(data, bytes(lengths)))

    def payload(self, data: Buffer, pool: Pool) -> Buffer:
        """The payload; in clear it is the same memory."""
        if self._cipher is None:
            return data
        size = len(data) - TAG_BYTES
        into = size > 0 and hasattr(self._cipher, "decrypt_into")
        opened: Buffer = self._opened(data, None, pool.take(size) if into else None)
        return opened

    def _opened(self, data: Buffer, covered: bytes | None, to: Buffer | None = None) -> Any:
        from cryptography.exceptions import InvalidTag

        number = self._numbers.next()
        try:
            if to is None:
                return self._cipher.decrypt(number, data, covered)
            self._cipher.decrypt_into(number, data, covered, to)
        except InvalidTag:
            raise BadMessage("it was changed on its way, or has another key") from None
        return to


class _Numbers:
    """Every encryption under a key needs a number that was not used before."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(12, "little")


def _cipher(key: bytes) -> Any:
    if not key:
        return None
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # a node without keys needs none

    return AESGCM(key)
