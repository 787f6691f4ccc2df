"""No coding: values are sent unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.codecs.base import Codec, Encoded, Received

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Plain(Codec):
    """Values are sent unchanged. Values that another codec cannot code are sent in this way too."""

    name = "none"
    summary = "values are sent unchanged"

    def wire_bytes(self, raw: int) -> int:
        return raw

    def payload_bytes(self, elements: int, value_bytes: int) -> int:
        return elements * value_bytes

    def encode(self, values: Tensor) -> Encoded:
        return Encoded(values.contiguous())

    def decode(self, received: Received, elements: int, dtype: torch.dtype) -> Tensor:
        """The tensor shares the message's memory. Nothing is copied."""
        import torch

        return torch.frombuffer(received.data, dtype=dtype)
