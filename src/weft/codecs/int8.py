"""8 bits for each number, with one scale for the whole tensor.

value = low + code * scale, with 256 codes between the smallest and the largest value of the tensor. `low`
and `scale` stand in the header. A plan counts them as two float32.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from weft.codecs.base import Codec, Encoded, Received

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_LOW_AND_SCALE = struct.Struct("<dd")
PLANNED_HEADER_BYTES = 8  # low and scale of a message, as two float32


class EightBits(Codec):
    """256 codes between the smallest and the largest value of a tensor."""

    name = "int8"
    summary = "8 bits for each number, one scale for the tensor"
    extra_bytes = _LOW_AND_SCALE.size

    def wire_bytes(self, raw: int) -> int:
        return -(-raw // 4) + PLANNED_HEADER_BYTES

    def payload_bytes(self, elements: int, value_bytes: int) -> int:
        return elements

    def encode(self, values: Tensor) -> Encoded | None:
        import torch

        low, high = (float(v) for v in torch.aminmax(values))
        if not (math.isfinite(low) and math.isfinite(high)):
            return None
        wide = values if values.dtype == torch.float64 else values.float()
        limits = torch.finfo(wide.dtype)
        if high - low > limits.max:  # the difference is too large for this type
            return None
        scale = max((high - low) / 255, limits.tiny) if high > low else 1.0
        codes = wide.sub(low).mul_(1 / scale).round_().clamp_(0, 255).to(torch.uint8)
        return Encoded(codes.contiguous(), _LOW_AND_SCALE.pack(low, scale))

    def decode(self, received: Received, elements: int, dtype: torch.dtype) -> Tensor:
        import torch

        low, scale = _LOW_AND_SCALE.unpack(received.extra)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        codes = torch.frombuffer(received.data, dtype=torch.uint8)
        return codes.to(wide).mul_(scale).add_(low).to(dtype)

    def problem(self, extra: bytes) -> str | None:
        wrong_size = super().problem(extra)
        if wrong_size:
            return wrong_size
        low, scale = _LOW_AND_SCALE.unpack(extra)
        if not (math.isfinite(low) and math.isfinite(scale)):
            return f"low {low} and scale {scale} are not both finite"
        return None
