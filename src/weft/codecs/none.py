"""No coding: every value travels as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.codecs.base import Codec, Encoded, Received

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Plain(Codec):
    """Every value travels as it is; also what no other codec can carry."""

    name = "none"
    summary = "values travel as they are"

    def wire_bytes(self, raw: int) -> int:
        return raw

    def payload_bytes(self, elements: int, value_bytes: int) -> int:
        return elements * value_bytes

    def encode(self, values: Tensor) -> Encoded:
        return Encoded(values.contiguous())

    def decode(self, received: Received, elements: int, dtype: torch.dtype) -> Tensor:
        """Shares the message's memory: nothing is copied."""
        import torch

        return torch.frombuffer(received.data, dtype=dtype)
