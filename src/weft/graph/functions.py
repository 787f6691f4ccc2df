"""Functions of Weft's own that the operator table names: small tensors whose numbers travel with the graph,
new values of buffers, and a copy with a derivative.
"""

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


def copied(place: Tensor, source: Tensor) -> Tensor:
    """The source in the shape and type of the place that it is written to. PyTorch's own operator for this
    has no derivative."""
    return source.to(place.dtype).expand_as(place)
