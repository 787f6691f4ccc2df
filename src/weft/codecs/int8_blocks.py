"""8 bits for each number, with a scale for every 256 numbers.

In each block of 256 neighbouring values: value = low + code * scale. A block of a feature map lies within one
channel or a few. So small values keep their digits, even if another channel has large values. The number of
blocks depends only on the number of values, so a plan can count the bytes without knowing any shape
(docs/decisions/codecs.md compares this with a scale for each channel).

The payload is a table of (low, scale) for each block as float32, then the codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.codecs.base import Codec, Encoded, Received

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK = 256  # values
TABLE_BYTES = 8  # low and scale of a block, as two float32


class EightBitsByBlocks(Codec):
    """256 codes between the smallest and the largest value of each block."""

    name = "int8-blocks"
    summary = "8 bits for each number, a scale for every 256 numbers: 3% more bytes than int8"

    def payload_bytes(self, elements: int, value_bytes: int) -> int:
        return elements + TABLE_BYTES * -(-elements // BLOCK)

    def encode(self, values: Tensor) -> Encoded | None:
        import torch

        elements = values.numel()
        blocks = _in_blocks(values if values.dtype == torch.float64 else values.float())
        low, high = torch.aminmax(blocks, dim=1, keepdim=True)
        low = low.float()
        scale = ((high - low) / 255).float().clamp_min_(torch.finfo(torch.float32).tiny)
        table = torch.cat([low, scale], dim=1)
        if not bool(torch.isfinite(table).all()):
            return None
        codes = blocks.sub_(low).div_(scale).round_().clamp_(0, 255).to(torch.uint8)
        data = torch.cat([table.view(torch.uint8).view(-1), codes.view(-1)[:elements]])
        return Encoded(data)

    def decode(self, received: Received, elements: int, dtype: torch.dtype) -> Tensor:
        import torch

        count = -(-elements // BLOCK)
        table = torch.frombuffer(received.data, dtype=torch.float32, count=2 * count).view(-1, 2)
        if not bool(torch.isfinite(table).all()):
            raise ValueError("the scales of the blocks are not all finite")
        codes = torch.frombuffer(received.data, dtype=torch.uint8, offset=TABLE_BYTES * count)
        blocks = _in_blocks(codes.to(torch.float64 if dtype == torch.float64 else torch.float32))
        values = blocks.mul_(table[:, 1:]).add_(table[:, :1]).view(-1)[:elements]
        return values.to(dtype)


def _in_blocks(values: Tensor) -> Tensor:
    """A copy with one block in each row; the last block is filled up with the last value."""
    flat = values.reshape(-1)
    rows = flat.new_empty(-(-flat.numel() // BLOCK), BLOCK)
    filled = rows.view(-1)
    filled[: flat.numel()] = flat
    filled[flat.numel() :] = flat[-1]
    return rows
