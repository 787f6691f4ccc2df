"""From a tensor to the bytes of a message, and back.

    spec, data = encode("x", tensor, "int8")
    again = decode(spec, tensor_bytes(data))

Only floating-point tensors are coded. Labels and tokens are sent unchanged. A received spec is not trusted:
`problem` checks it before any memory is allocated, and `decode` checks it again.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from msgspec import Struct
from torch import Tensor

from weft.codecs.base import MAX_EXTRA_BYTES, Received
from weft.codecs.registry import CODECS, CodecName, codec_named
from weft.dtypes import DTYPE_BYTES, torch_dtype

MAX_DIMS = 8
MAX_ELEMENTS = 1 << 30


class TensorSpec(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Describes the bytes of one tensor: its name, type, shape and codec."""

    name: str
    dtype: str  # of the decoded tensor
    shape: tuple[int, ...]
    codec: CodecName = "none"
    extra: bytes = b""  # what the codec needs besides the payload, for example a scale

    @property
    def elements(self) -> int:
        """How many numbers the tensor has."""
        return math.prod(self.shape)

    @property
    def payload_bytes(self) -> int:
        """Bytes that this tensor takes in the message's payload."""
        return CODECS[self.codec].payload_bytes(self.elements, DTYPE_BYTES[self.dtype])

    def problem(self) -> str | None:
        """Why this cannot be a tensor, or None. Call it before memory is allocated."""
        if self.dtype not in DTYPE_BYTES:
            return f"unknown dtype {self.dtype[:20]!r}"
        if self.codec not in CODECS:
            return f"unknown codec {self.codec[:20]!r}"
        # if one dimension is 0, the others must be checked too: their strides are computed anyway
        size = math.prod(max(n, 1) for n in self.shape[: MAX_DIMS + 1])
        if len(self.shape) > MAX_DIMS or size > MAX_ELEMENTS or any(n < 0 for n in self.shape):
            return f"shape {self.shape[:9]} is not allowed"
        codec = CODECS[self.codec]
        if codec.name != "none" and not self.dtype.startswith(("float", "bfloat")):
            return f"codec {codec.name} on {self.dtype}"
        if len(self.extra) > MAX_EXTRA_BYTES:
            return f"{len(self.extra)} bytes for the codec; at most {MAX_EXTRA_BYTES} are allowed"
        return codec.problem(self.extra)


@lru_cache(maxsize=1024)
def checked_bytes(spec: TensorSpec) -> int:
    """Bytes that a received tensor takes in the payload. ValueError with the reason if it cannot be a tensor.

    A run sends the same few tensors again and again, so they are judged once.
    """
    problem = spec.problem()
    if problem:
        raise ValueError(f"tensor {spec.name[:40]!r}: {problem}")
    return spec.payload_bytes


def encode(name: str, tensor: Tensor, codec: CodecName) -> tuple[TensorSpec, Tensor]:
    """(the description of the bytes, a contiguous CPU tensor that holds the bytes)."""
    chosen = codec_named(codec)
    tensor = tensor.detach()
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if codec != "none" and tensor.is_floating_point() and tensor.numel():
        encoded = chosen.encode(tensor)
        if encoded is not None:
            return TensorSpec(name, dtype, shape, codec, encoded.extra), encoded.data
    return TensorSpec(name, dtype, shape), tensor.contiguous()


def decode(spec: TensorSpec, data: memoryview) -> Tensor:
    """The tensor. Without a codec it shares the message's memory. Raises ValueError if spec and data
    disagree."""
    size = checked_bytes(spec)
    if len(data) != size:
        raise ValueError(f"tensor {spec.name[:40]!r}: {len(data)} bytes where {size} are expected")
    dtype, elements = torch_dtype(spec.dtype), spec.elements
    if elements == 0:
        return torch.empty(spec.shape, dtype=dtype)
    values = CODECS[spec.codec].decode(Received(data, spec.extra), elements, dtype)
    return values.view(spec.shape)


def rounded(tensor: Tensor, codec: CodecName) -> Tensor:
    """The tensor as it arrives after coding and decoding."""
    spec, data = encode("", tensor, codec)
    return decode(spec, tensor_bytes(data))


def tensor_bytes(tensor: Tensor) -> memoryview:
    """A contiguous CPU tensor's memory, without a copy."""
    if tensor.numel() == 0:
        return memoryview(b"")
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return memoryview(tensor.numpy().data).cast("B")
