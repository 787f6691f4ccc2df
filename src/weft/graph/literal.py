"""Small tensors that are neither parameters nor buffers: their numbers travel with the graph. And new values
of buffers."""

from __future__ import annotations

import torch
from torch import Tensor


def literal(
    numbers: list[bool | int | float], shape: list[int], dtype: torch.dtype = torch.float32
) -> Tensor:
    """A tensor from its numbers, row by row."""
    return torch.tensor(numbers, dtype=dtype).reshape(shape)


@torch.no_grad()
def renew(buffer: Tensor, value: Tensor) -> Tensor:
    """Writes a new value into a buffer. No gradient flows through it, as with every buffer that is kept from
    one minibatch to the next."""
    return buffer.copy_(value)
