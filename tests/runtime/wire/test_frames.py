"""What crosses the network: exact round trips, and bytes from strangers that do no harm."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from weft.codecs.registry import CODECS, CodecName
from weft.codecs.tensors import TensorSpec
from weft.dtypes import DTYPE_BYTES, torch_dtype
from weft.graph.optimizers.optimizer import Optimizer
from weft.program.instructions import Send
from weft.program.instructions import Tensor as Moved
from weft.runtime.wire import messages as msg
from weft.runtime.wire.frames import (
    MAX_PAYLOAD,
    BadMessage,
    Header,
    pack_header,
    pack_tensors,
    unpack_header,
    unpack_tensors,
)
from weft.runtime.wire.links.channel import Roads

pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")

SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)


def some(shape: tuple[int, ...], dtype: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 50
    return values.to(torch_dtype(dtype)) if dtype != "bool" else values > 0


def header_of(tensors: dict[str, Tensor], codec: CodecName = "none") -> tuple[Header, bytes]:
    specs, payload = pack_tensors(tensors, codec)
    return Header("r", 0, 1, "act", 2, 0, "pi", "nuc", len(payload), specs), payload


@given(
    shapes=st.lists(st.tuples(SHAPES, st.sampled_from(list(DTYPE_BYTES))), max_size=4),
    codec=st.sampled_from(list(CODECS)),
    seed=st.integers(0, 99),
)
def test_messages_of_any_types_and_shapes_arrive_as_they_were_sent(
    shapes: list[tuple[tuple[int, ...], str]], codec: CodecName, seed: int
) -> None:
    tensors = {f"t{i}": some(*s, seed) for i, s in enumerate(shapes)}
    header, payload = header_of(tensors, codec)
    again = unpack_header(pack_header(header))
    assert again == header
    found = unpack_tensors(again, payload)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].shape == tensor.shape
        assert found[name].dtype == tensor.dtype
        if codec == "none" or not tensor.is_floating_point():
            assert torch.equal(found[name], tensor)
        elif tensor.numel():
            span = float(tensor.max() - tensor.min())
            torch.testing.assert_close(found[name], tensor, rtol=0.01, atol=span / 255 + 1e-6)


@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_are_a_bad_message_and_nothing_else(data: bytes) -> None:
    for unpack in (unpack_header, msg.unpack_command, msg.unpack_reply, msg.unpack_report):
        try:
            unpack(data)
        except BadMessage:
            continue


ODD: Any = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5),
    st.sampled_from([2**30, 2**31, 2**62, "float32", "int8", "none", "object", "int8-blocks"]),
    st.binary(max_size=80),
    st.lists(st.integers(0, 2**62), max_size=10),
)  # fmt: skip


@given(data=st.data(), codec=st.sampled_from(list(CODECS)))
def test_a_tampered_header_is_a_bad_message_or_means_tensors_no_larger_than_the_payload(
    data: st.DataObject, codec: CodecName
) -> None:
    header, payload = header_of({"a": torch.ones(2, 3), "b": torch.zeros(0, 4)}, codec)
    fields: Any = msgspec.msgpack.decode(msgspec.msgpack.encode(header))
    for _ in range(data.draw(st.integers(1, 3))):
        target = fields
        if isinstance(fields[9], list) and len(fields[9]) == 2 and data.draw(st.booleans()):
            target = data.draw(st.sampled_from(fields[9]))
            if not isinstance(target, list) or not target:
                continue
        target[data.draw(st.integers(0, len(target) - 1))] = data.draw(ODD)
    try:
        found = unpack_tensors(unpack_header(msgspec.msgpack.encode(fields)), payload)
    except BadMessage:
        return
    assert sum(t.numel() for t in found.values()) <= len(payload)


@given(cut=st.integers(0, 200), flip=st.integers(0, 1_000_000))
def test_a_damaged_header_never_raises_anything_else(cut: int, flip: int) -> None:
    header, payload = header_of({"a": torch.ones(2, 3)})
    raw = bytearray(pack_header(header))
    raw[flip % len(raw)] ^= 1 << flip % 8
    for damaged in (bytes(raw), bytes(raw[:cut])):
        try:
            unpack_tensors(unpack_header(damaged), payload)
        except BadMessage:
            continue


@pytest.mark.parametrize(
    ("shape", "dtype", "codec", "announced"),
    [
        ((2**40,), "float32", "none", 2**42),
        ((2**29,), "float32", "none", MAX_PAYLOAD * 2),
        ((0, 2**62, 2**62), "float32", "none", 0),
        ((2**62, 2**62, 0), "uint8", "none", 0),
        ((0, 2**30, 2**30, 2**30), "float32", "none", 0),
        ((-1,), "float32", "none", 24),
        ((1,) * 9, "float32", "none", 4),
        ((6,), "object", "none", 24),
        ((6,), "int64", "int8", 6),
        ((6,), "float32", "zip", 6),
        ((6,), "float32", "int8", 6),  # without its scale
        ((2**40,), "float32", "int8-blocks", 2**40 + 2**35),
        ((600,), "float32", "int8-blocks", 600),  # without the scales of its blocks
    ],
)
def test_sizes_are_checked_before_memory_is_taken(
    shape: tuple[int, ...], dtype: str, codec: CodecName, announced: int
) -> None:
    header, _ = header_of({})
    spec = TensorSpec("a", dtype, shape, codec)
    with pytest.raises(BadMessage):
        unpack_header(
            pack_header(msgspec.structs.replace(header, bytes=announced, tensors=(spec,)))
        )


def test_scales_that_are_no_numbers_are_a_bad_message() -> None:
    header, payload = header_of({"a": torch.ones(300)}, "int8-blocks")
    with pytest.raises(BadMessage, match="not all finite"):
        unpack_tensors(header, b"\xff" * 16 + payload[16:])


def test_a_job_with_an_unknown_codec_is_a_bad_message() -> None:
    for codec in ("int8-blocks", "zip"):
        job: Any = msg.Job(
            run="r", version=0, mode="train", batch=1, layers=1, segments=(), inputs=(),
            optimizer=Optimizer(), roads=Roads(),
            code=(Send(Moved("act", 1), "nuc", 8, codec),),
        )  # fmt: skip
        data = msg.pack(msg.Assign(job))
        if codec == "zip":
            with pytest.raises(BadMessage, match="unknown codec 'zip'"):
                msg.unpack_command(data)
        else:
            assert msg.unpack_command(data) == msg.Assign(job)


def test_a_payload_that_is_not_what_the_header_says_is_refused() -> None:
    header, payload = header_of({"a": torch.ones(4)})
    for wrong in (payload[:-1], payload + b"x", b""):
        with pytest.raises(BadMessage, match="16"):
            unpack_tensors(header, wrong)
    with pytest.raises(BadMessage, match="tensors of 16 bytes"):
        unpack_header(pack_header(msgspec.structs.replace(header, bytes=15)))
    for pieces in ((1, 1), (0, 0), (-1, 2), (0, 5000)):
        with pytest.raises(BadMessage, match="piece"):
            unpack_header(
                pack_header(msgspec.structs.replace(header, piece=pieces[0], pieces=pieces[1]))
            )
