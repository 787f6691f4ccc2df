"""Half precision: 2 bytes for each number, about 3 decimal digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.codecs.base import Codec, Encoded, Received

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LARGEST = 65504  # of half precision


class HalfPrecision(Codec):
    """2 bytes for each number. Values beyond the range of half precision are clamped."""

    name = "fp16"
    summary = "half precision: 2 bytes for each number"

    def wire_bytes(self, raw: int) -> int:
        return -(-raw // 2)

    def payload_bytes(self, elements: int, value_bytes: int) -> int:
        return 2 * elements

    def encode(self, values: Tensor) -> Encoded:
        # A larger value would become infinite and spoil everything the receiver computes with it.
        return Encoded(values.clamp(-LARGEST, LARGEST).half().contiguous())

    def decode(self, received: Received, elements: int, dtype: torch.dtype) -> Tensor:
        import torch

        return torch.frombuffer(received.data, dtype=torch.float16).to(dtype)
