"""The part of the weights that a segment of a sliced network uses."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from weft.graph.network import Segment


def sliced_state(segment: Segment, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `Runner(segment, ...)` needs of the whole network's state. Parts are copies."""
    found: dict[str, Tensor] = {}
    for name, info in segment.state.items():
        tensor, pick = state[name], segment.picks.get(name)
        if pick is not None:
            part = tensor.detach().view(pick.shape)
            part = part.narrow(pick.dim, pick.first, pick.last - pick.first)
            tensor = part.reshape(info.shape).clone(memory_format=torch.contiguous_format)
        found[name] = tensor
    return found
