"""Takes a segment's part of the weights out of the whole network's state, and puts it back.

mine = sliced_state(segment, state)       # what a device gets
place_state(segment, mine, state)         # what it gives back, written where it belongs
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.graph.network import Pick, Segment


def sliced_state(segment: Segment, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of the whole network's state that `Runner(segment, ...)` needs. Parts are copies."""
    tensors: dict[str, Tensor] = {}
    for name, info in segment.state.items():
        tensor, pick = state[name], segment.picks.get(name)
        if pick is not None and pick.listed:
            tensor = _listed(tensor.detach(), pick)
        elif pick is not None:
            part = tensor.detach().view(pick.shape)
            part = part.narrow(pick.dim, pick.first, pick.last - pick.first)
            tensor = part.reshape(info.shape).clone(memory_format=torch.contiguous_format)
        tensors[name] = tensor
    return tensors


def sliced_memory(segment: Segment, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same for an optimizer's memory, whose tensors have names such as "weight/exp_avg"."""
    tensors: dict[str, Tensor] = {}
    for full, tensor in memory.items():
        name = full.rpartition("/")[0]
        if name in segment.state:
            pick = segment.picks.get(name)
            cut = pick is not None and pick.listed and tensor.dim() > 0
            tensors[full] = _listed(tensor, pick) if cut and pick else tensor
    return tensors


def place_state(segment: Segment, part: Mapping[str, Tensor], into: dict[str, Tensor]) -> None:
    """Writes a device's weights, or its optimizer's memory, into the whole network's tensors.

    If `into` has no tensor of a name yet, it gets one of zeros. Whole tensors replace those in `into`.
    """
    for full, tensor in part.items():
        memory = "/" in full
        name = full.rpartition("/")[0] if memory else full
        pick = segment.picks.get(name)
        if name not in segment.state:
            continue
        # The optimizer's memory may have a shape of its own: the number of updates, the mean of a row.
        other = memory and tuple(tensor.shape) != segment.state[name].shape
        counter = other and (tensor.dim() == 0 or pick is None or not pick.listed)
        if not counter and tuple(tensor.shape) != segment.state[name].shape:
            raise WeftError(
                f"{full} came back in shape {tuple(tensor.shape)}, not {segment.state[name].shape}"
            )
        if counter or pick is None or not pick.listed:
            into[full] = tensor
            continue
        whole = into.get(full)
        whole = torch.zeros(pick.shape, dtype=tensor.dtype) if whole is None else whole
        into[full] = _placed(whole.detach().clone(), tensor, pick)


def _listed(tensor: Tensor, pick: Pick) -> Tensor:
    for dim, places in ((0, pick.rows), (1, pick.columns)):
        if places:
            tensor = tensor.index_select(dim, torch.tensor(places))
    return tensor.contiguous()


def _placed(whole: Tensor, part: Tensor, pick: Pick) -> Tensor:
    if pick.columns:
        rows = pick.rows or tuple(range(whole.shape[0]))
        whole[torch.tensor(rows)[:, None], torch.tensor(pick.columns)] = part
    else:
        whole[torch.tensor(pick.rows)] = part
    return whole
