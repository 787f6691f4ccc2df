"""What every codec promises: sizes as announced, values near what was sent, strangers' bytes refused."""

from __future__ import annotations

import math
import struct

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from weft.codecs.base import MAX_EXTRA_BYTES
from weft.codecs.int8_blocks import BLOCK
from weft.codecs.registry import CODECS
from weft.codecs.tensors import TensorSpec, decode, encode, rounded, tensor_bytes
from weft.dtypes import DTYPE_BYTES

pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")

FLOATS = [name for name in DTYPE_BYTES if "float" in name]
CODING = [name for name in CODECS if name != "none"]
EIGHT_BITS = ["int8", "int8-blocks"]
SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)


def some(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 50).to(getattr(torch, dtype))


@given(
    codec=st.sampled_from(list(CODECS)), shape=SHAPES, dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_what_arrives_has_the_announced_size_and_is_near_what_was_sent(
    codec: str, shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    tensor = some(shape, dtype, seed)
    spec, data = encode("t", tensor, codec)
    assert spec.problem() is None
    assert len(spec.extra) <= MAX_EXTRA_BYTES
    payload = tensor_bytes(data)
    assert len(payload) == spec.payload_bytes
    arrived = decode(spec, payload)
    assert (arrived.shape, arrived.dtype) == (tensor.shape, tensor.dtype)
    if tensor.numel():
        span = float(tensor.max() - tensor.min())
        torch.testing.assert_close(arrived, tensor, rtol=0.01, atol=span / 255 + 1e-6)
    assert torch.equal(rounded(tensor, codec), arrived)


@given(codec=st.sampled_from(list(CODECS)), elements=st.integers(1, 3000))
def test_a_plan_counts_the_bytes_of_payload_and_header(codec: str, elements: int) -> None:
    spec, data = encode("t", some((elements,)), codec)
    counted = CODECS[codec].wire_bytes(4 * elements)
    # int8 has two float64 in the header and counts them as two float32
    header = 8 if codec == "int8" else len(spec.extra)
    assert counted == len(tensor_bytes(data)) + header


@pytest.mark.parametrize("codec", CODECS)
def test_values_may_lie_in_memory_in_any_order(codec: str) -> None:
    across = some((30, 40)).t()
    assert torch.equal(rounded(across, codec), rounded(across.contiguous(), codec))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_labels_and_tokens_travel_as_they_are(codec: str, dtype: str) -> None:
    tensor = torch.arange(7).to(getattr(torch, dtype))
    spec, data = encode("t", tensor, codec)
    assert spec.codec == "none"
    assert torch.equal(decode(spec, tensor_bytes(data)), tensor)


@given(
    codec=st.sampled_from(EIGHT_BITS),
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=30),
    dtype=st.sampled_from(FLOATS),
)
def test_eight_bits_are_at_most_half_a_step_off(
    codec: str, values: list[float], dtype: str
) -> None:
    tensor = torch.tensor(values).to(getattr(torch, dtype))
    tensor = torch.where(tensor.isfinite(), tensor, torch.zeros_like(tensor))
    spec, data = encode("t", tensor, codec)
    assert spec.codec == codec
    arrived = decode(spec, tensor_bytes(data)).double()
    exact = tensor.double()
    step = float(exact.max() - exact.min()) / 255
    own = torch.finfo(tensor.dtype).eps
    computed = torch.finfo(
        torch.float64 if (dtype, codec) == ("float64", "int8") else torch.float32
    ).eps
    allowed = step / 2 * (1 + 1e-3) + (2 * own + 4 * computed) * 2 * float(exact.abs().max())
    assert float((arrived - exact).abs().max()) <= allowed + 1e-37


@pytest.mark.parametrize("codec", EIGHT_BITS)
@pytest.mark.parametrize("value", [3e38, math.inf, -math.inf, math.nan])
def test_what_eight_bits_cannot_carry_travels_as_it_is(codec: str, value: float) -> None:
    tensor = torch.tensor([-3e38, 3e38 if value == -math.inf else 0.0, value])
    spec, data = encode("t", tensor, codec)
    assert spec.codec == "none"
    assert torch.equal(decode(spec, tensor_bytes(data)).nan_to_num(7), tensor.nan_to_num(7))


@pytest.mark.parametrize("codec", EIGHT_BITS)
@pytest.mark.parametrize(
    "values", [[3.25] * 5, [0.0, 1e-45], [-1e-44, 0.0], [7.0] * 300, [1e-30, 2e-30]]
)
def test_equal_values_and_tiny_differences_survive_eight_bits(
    codec: str, values: list[float]
) -> None:
    tensor = torch.tensor(values)
    torch.testing.assert_close(rounded(tensor, codec), tensor, rtol=0, atol=1e-32)


def test_a_block_of_small_values_keeps_its_digits_beside_one_of_large_values() -> None:
    small, large = some((BLOCK,), seed=1) * 1e-3, some((BLOCK,), seed=2)
    both = torch.cat([small, large])
    lost, kept = (rounded(both, codec)[:BLOCK] for codec in ("int8", "int8-blocks"))
    assert float((lost - small).norm() / small.norm()) > 0.5
    assert float((kept - small).norm() / small.norm()) < 0.01


def test_half_precision_clamps_and_never_makes_infinities() -> None:
    tensor = torch.tensor([-1e9, -65504.0, 1.5, 65519.9, 1e38])
    expected = torch.tensor([-65504.0, -65504.0, 1.5, 65504.0, 65504.0])
    assert torch.equal(rounded(tensor, "fp16"), expected)


@pytest.mark.parametrize("codec", CODECS)
def test_a_payload_of_another_size_is_refused(codec: str) -> None:
    spec, data = encode("t", some((3, 100)), codec)
    payload = bytes(tensor_bytes(data))
    for wrong in (payload[:-1], payload + b"x", b""):
        with pytest.raises(ValueError, match="are expected"):
            decode(spec, memoryview(wrong))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"codec": "zip"}, "unknown codec 'zip'"),
        ({"codec": "int8" * 100}, "unknown codec"),
        ({"dtype": "object"}, "unknown dtype"),
        ({"dtype": "int64"}, "codec int8 on int64"),
        ({"shape": (-300,)}, "not allowed"),
        ({"shape": (1 << 31,)}, "not allowed"),
        ({"extra": b""}, "0 bytes for codec int8"),
        ({"extra": b"x" * (MAX_EXTRA_BYTES + 1)}, "at most"),
        ({"extra": struct.pack("<dd", math.nan, 1.0)}, "not both finite"),
        ({"extra": struct.pack("<dd", 0.0, math.inf)}, "not both finite"),
        ({"codec": "none"}, "16 bytes for codec none"),
        ({"codec": "int8-blocks"}, "16 bytes for codec int8-blocks"),
    ],
)
def test_a_spec_that_no_codec_writes_is_refused_before_memory_is_taken(
    changes: dict[str, object], why: str
) -> None:
    spec, data = encode("t", some((300,)), "int8")
    wrong = msgspec.structs.replace(spec, **changes)
    assert why in (wrong.problem() or "")
    with pytest.raises(ValueError, match=why):
        decode(wrong, tensor_bytes(data))


def test_scales_of_blocks_that_are_no_numbers_are_refused() -> None:
    spec, data = encode("t", some((300,)), "int8-blocks")
    payload = bytearray(tensor_bytes(data))
    payload[4:8] = struct.pack("<f", math.nan)
    with pytest.raises(ValueError, match="not all finite"):
        decode(spec, memoryview(payload))


@given(
    codec=st.one_of(st.sampled_from(list(CODECS)), st.text(max_size=8)),
    dtype=st.one_of(st.sampled_from(list(DTYPE_BYTES)), st.text(max_size=8)),
    shape=st.lists(st.integers(-3, 2**62), max_size=10),
    small=st.lists(st.integers(0, 20), max_size=3),
    extra=st.binary(max_size=80),
    payload=st.binary(max_size=600),
)
def test_any_spec_with_any_bytes_is_a_value_error_or_a_tensor_no_larger_than_they_are(
    codec: str, dtype: str, shape: list[int], small: list[int], extra: bytes, payload: bytes
) -> None:
    for dims in (tuple(shape), tuple(small)):
        spec = TensorSpec("t", dtype, dims, codec, extra)
        try:
            tensor = decode(spec, memoryview(payload))
        except ValueError:
            continue
        assert tensor.numel() <= len(payload)
