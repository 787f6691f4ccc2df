"""Wrong messages: a short run of proofs/fuzz.py on a real node, and all decoders with any bytes."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from proofs.fuzz import MAX_GROWTH, fuzz
from weft.errors import InputError
from weft.runtime.keys.invite import MARK, read_invite
from weft.runtime.keys.members import SignedMembers
from weft.runtime.wire import keeper
from weft.runtime.wire import messages as msg
from weft.runtime.wire.frames import BadMessage, unpack_header
from weft.stored import tensors_in

DEEP = b"\x91" * 5000 + b"\x01"


def test_a_node_survives_two_thousand_wrong_messages() -> None:
    result = fuzz(2000, seed=3)
    assert result.alive, result.last_words
    assert result.growth < MAX_GROWTH
    assert len(result.counts) == 6
    assert len(result.places) == 7


ANY = st.one_of(
    st.binary(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20)
        | st.binary(max_size=20),
        lambda inner: st.lists(inner, max_size=8)
        | st.dictionaries(st.sampled_from(["type", "run", "job", "name", "device"]), inner),
        max_leaves=20,
    ).map(msgspec.msgpack.encode),
)  # fmt: skip


@given(ANY)
@example(DEEP)
def test_decoders_refuse_any_bytes_in_words(data: bytes) -> None:
    """Each has one kind of error, which its caller expects."""
    for decode in (msg.unpack_command, msg.unpack_reply, msg.unpack_report, unpack_header):
        with contextlib.suppress(BadMessage):
            decode(data)
    for decoder in (keeper._questions, keeper._answers):
        with contextlib.suppress(InputError):
            keeper._decoded(decoder, data)
    with contextlib.suppress(InputError):
        SignedMembers(data, b"").opened()
    with contextlib.suppress(InputError):
        tensors_in(data)
    with contextlib.suppress(InputError):
        read_invite(MARK + data.hex())


NUMBERS = st.integers(-(2**64), 2**64) | st.floats() | st.none() | st.text(max_size=3)
TYPES = ["BOOL", "U8", "I8", "F8_E4M3", "F8_E8M0", "F4", "F6_E2M3", "U16", "F32", "C64", "X"]
HEADS = st.dictionaries(
    st.text(max_size=4),
    st.fixed_dictionaries(
        {"dtype": st.sampled_from(TYPES), "shape": st.lists(st.integers(0, 9) | NUMBERS, max_size=4),
         "data_offsets": st.lists(st.integers(0, 64) | NUMBERS, max_size=3)}
    ) | st.dictionaries(st.text(max_size=2), st.text(max_size=2)),
    max_size=3,
)  # fmt: skip


@given(HEADS, st.integers(0, 64))
@example({"w": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}, 0)
@example({"w": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}, 3)
def test_any_head_of_tensors_is_followed_or_refused_in_words(
    head: dict[str, Any], size: int
) -> None:
    packed = json.dumps(head).encode()
    with contextlib.suppress(InputError):
        tensors_in(len(packed).to_bytes(8, "little") + packed + bytes(size))
