"""A message looks the same at both ends of a connection, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import aead
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from weft.runtime.wire.carrier.pool import Pool
from weft.runtime.wire.carrier.records import (
    LENGTHS,
    MAX_KEPT,
    TAG_BYTES,
    Opener,
    Sealer,
    connection_key,
    lengths_of,
)
from weft.runtime.wire.frames import MAX_HEADER, MAX_PAYLOAD, BadMessage

KEY = bytes(range(32))


def on_the_wire(sealer: Sealer, header: bytes, *views: bytes) -> bytes:
    return b"".join(bytes(buffer) for buffer in sealer.record(header, views))


def read(opener: Opener, data: bytes) -> tuple[bytes, bytes]:
    lengths = data[: LENGTHS.size]
    header, payload = lengths_of(lengths)
    begin = LENGTHS.size + header + opener.tag_bytes
    packed = opener.header(data[LENGTHS.size : begin], lengths)
    assert len(data) == begin + payload + opener.tag_bytes
    return packed, bytes(opener.payload(data[begin:], Pool()))


@pytest.mark.parametrize("key", [b"", KEY])
def test_what_was_written_is_read(key: bytes) -> None:
    sealer, opener = Sealer(key), Opener(key)
    for header, views in ((b"head", [b"body"]), (b"h" * 5000, [b"a", b"", b"bc"]), (b"x", [b""])):
        assert read(opener, on_the_wire(sealer, header, *views)) == (header, b"".join(views))


def test_memory_that_is_used_again_holds_one_message_at_a_time() -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    for size in (100_000, 10, MAX_KEPT + 1, 0, 100_000):
        payload = bytes([size % 251]) * size
        assert read(opener, on_the_wire(sealer, b"h", payload)) == (b"h", payload)
    assert len(sealer._memory) == 100_000 + TAG_BYTES


@pytest.mark.parametrize("missing", ["encrypt_into", "decrypt_into"])
def test_an_older_library_writes_the_same(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        def __init__(self, key: bytes) -> None:
            self._cipher = AESGCM(key)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or name == missing:
                raise AttributeError(name)
            return getattr(self._cipher, name)

    plain = on_the_wire(Sealer(KEY), b"head", b"body" * 99)
    with monkeypatch.context() as patch:
        patch.setattr(aead, "AESGCM", Older)
        assert on_the_wire(Sealer(KEY), b"head", b"body" * 99) == plain
        assert read(Opener(KEY), plain) == (b"head", b"body" * 99)


def test_nothing_of_an_encrypted_message_can_be_read_on_the_way() -> None:
    data = on_the_wire(Sealer(KEY), b"the header of it", b"the payload of it")
    assert b"header" not in data
    assert b"payload" not in data
    again = on_the_wire(Sealer(KEY), b"the header of it", b"the payload of it")
    assert len(data) == LENGTHS.size + 16 + 17 + 2 * TAG_BYTES == len(again)


@pytest.mark.parametrize("place", [0, 4, 9, 30, -1])
def test_a_changed_byte_is_noticed(place: int) -> None:
    data = bytearray(on_the_wire(Sealer(KEY), b"the header", b"the payload of the message"))
    data[place] ^= 1
    with pytest.raises((BadMessage, AssertionError)):
        read(Opener(KEY), bytes(data))


def test_a_repeated_message_is_noticed() -> None:
    data = on_the_wire(Sealer(KEY), b"header", b"payload")
    opener = Opener(KEY)
    read(opener, data)
    with pytest.raises(BadMessage, match="changed on its way"):
        read(opener, data)


def test_lengths_are_checked_before_memory_is_taken() -> None:
    for lengths in ((MAX_HEADER + 17, 0), (1, MAX_PAYLOAD + 1), (2**32 - 1, 2**32 - 1)):
        with pytest.raises(BadMessage, match="announces"):
            lengths_of(LENGTHS.pack(*lengths))


def test_a_connections_key_needs_the_ticket_and_the_run() -> None:
    keys = {connection_key(s, k) for s in (b"s" * 32, b"t" * 32) for k in (b"k" * 32, b"l" * 32)}
    assert len(keys) == 4
