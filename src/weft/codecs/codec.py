"""How a tensor's values are written on a link: as they are, in half precision, or in 8 bits.

    spec, data = encode(tensor, "int8")
    again = decode(spec, data)

int8 is affine per tensor: value = low + code * scale, with 256 codes between the smallest and the
largest value. Only floating-point tensors are coded; labels and tokens travel as they are.
"""

from __future__ import annotations

import math

import torch
from msgspec import Struct
from torch import Tensor

from weft.codecs.sizes import Codec
from weft.graph.network import DTYPE_BYTES
from weft.graph.operators import DTYPES

CODECS: tuple[Codec, ...] = ("none", "fp16", "int8")
MAX_DIMS = 8
MAX_ELEMENTS = 1 << 30


class TensorSpec(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the bytes of one tensor mean."""

    name: str
    dtype: str  # of the decoded tensor
    shape: tuple[int, ...]
    codec: Codec = "none"
    low: float = 0.0
    scale: float = 1.0

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def wire_bytes(self) -> int:
        return self.elements * {"none": DTYPE_BYTES[self.dtype], "fp16": 2, "int8": 1}[self.codec]

    def problem(self) -> str | None:
        """Why this cannot be a tensor, or None. Must be asked before anything is allocated."""
        if self.dtype not in DTYPE_BYTES:
            return f"unknown dtype {self.dtype[:20]!r}"
        # an empty dimension must not hide the others: their strides are computed all the same
        size = math.prod(max(n, 1) for n in self.shape[: MAX_DIMS + 1])
        if len(self.shape) > MAX_DIMS or size > MAX_ELEMENTS or any(n < 0 for n in self.shape):
            return f"shape {self.shape[:9]} is not allowed"
        if self.codec != "none" and not self.dtype.startswith(("float", "bfloat")):
            return f"codec {self.codec} on {self.dtype}"
        if not (math.isfinite(self.low) and math.isfinite(self.scale)):
            return "scale or offset is not finite"
        return None


def encode(name: str, tensor: Tensor, codec: Codec) -> tuple[TensorSpec, Tensor]:
    """(what the bytes mean, a contiguous CPU tensor whose bytes they are)."""
    tensor = tensor.detach()
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if codec == "none" or not tensor.is_floating_point() or tensor.numel() == 0:
        return TensorSpec(name, dtype, shape), tensor.contiguous()
    if codec == "fp16":
        # Past half precision's range a value would become infinite and poison the receiver.
        return TensorSpec(name, dtype, shape, "fp16"), tensor.clamp(
            -65504, 65504
        ).half().contiguous()
    low, high = (float(v) for v in torch.aminmax(tensor))
    if not (math.isfinite(low) and math.isfinite(high)):
        return TensorSpec(name, dtype, shape), tensor.contiguous()
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()
    limits = torch.finfo(wide.dtype)
    if high - low > limits.max:  # the differences are no numbers of this type
        return TensorSpec(name, dtype, shape), tensor.contiguous()
    scale = max((high - low) / 255, limits.tiny) if high > low else 1.0
    codes = wide.sub(low).mul_(1 / scale).round_().clamp_(0, 255).to(torch.uint8)
    return TensorSpec(name, dtype, shape, "int8", low, scale), codes.contiguous()


def decode(spec: TensorSpec, data: memoryview) -> Tensor:
    """The tensor; without a codec it shares the message's memory (nothing is copied)."""
    if spec.elements == 0:
        return torch.empty(spec.shape, dtype=DTYPES[spec.dtype])
    if spec.codec == "none":
        return torch.frombuffer(data, dtype=DTYPES[spec.dtype]).view(spec.shape)
    if spec.codec == "fp16":
        return torch.frombuffer(data, dtype=torch.float16).to(DTYPES[spec.dtype]).view(spec.shape)
    wide = torch.float64 if spec.dtype == "float64" else torch.float32
    values = torch.frombuffer(data, dtype=torch.uint8).to(wide).mul_(spec.scale).add_(spec.low)
    return values.to(DTYPES[spec.dtype]).view(spec.shape)


def rounded(tensor: Tensor, codec: Codec) -> Tensor:
    """The tensor as it arrives."""
    spec, data = encode("", tensor, codec)
    return decode(spec, tensor_bytes(data))


def tensor_bytes(tensor: Tensor) -> memoryview:
    """A contiguous CPU tensor's memory, uncopied."""
    if tensor.numel() == 0:
        return memoryview(b"")
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return memoryview(tensor.numpy().data).cast("B")
