"""Weights that peers exchange, found in a network's state: shared as copies, blended in place.

    groups = Groups(job.groups, state)
    values = groups.share(3)                       # the structure of class 3, with names that all peers use
    groups.blend(3, [(1.0, values), (1.0, theirs)])

A structure is stored in a bank with others, at certain places of each tensor's first dimension. These places
differ from peer to peer. In messages a structure has names that are the same for all peers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from weft.codecs.registry import CodecName
from weft.codecs.tensors import rounded
from weft.errors import WeftError
from weft.runtime.wire.messages import Slice

Values = Mapping[str, Tensor]
ROW = "row"
MEAN = "mean/"  # names of weights that are means over a device's last rounds
KEPT = "kept/"  # names of weights that are kept for another device: kept/4/conv5.weight


class Groups:
    """The groups of one device. The state's tensors are read and written in place."""

    def __init__(self, groups: Mapping[int, Sequence[Slice]], state: Mapping[str, Tensor]) -> None:
        self._views = {
            group: {s.label: _view(s, state) for s in sorted(slices, key=lambda s: s.label)}
            for group, slices in groups.items()
        }
        # Rounding errors that have not been sent yet.
        self._dropped: dict[int, dict[str, Tensor]] = {}
        self.kept: dict[str, Tensor] = {n: t for n, t in state.items() if n.startswith(KEPT)}

    def share(self, group: int, codec: CodecName = "none") -> dict[str, Tensor]:
        """The group's weights to send. The rounding error of `codec` is added to the next share.

        Without that, changes smaller than a step of the code would never be sent.
        """
        views = self._of(group)
        if codec == "none":
            return {label: view.clone() for label, view in views.items()}
        left = self._dropped.get(group, {})
        whole = {label: view + left.get(label, 0.0) for label, view in views.items()}
        self._dropped[group] = {label: t - rounded(t, codec) for label, t in whole.items()}
        return whole

    def share_row(self, group: int, scale: float) -> dict[str, Tensor]:
        """The whole group as one row of numbers, in the order of the names."""
        row = torch.cat([view.reshape(-1) for view in self._of(group).values()])
        return {ROW: row if scale == 1.0 else row * scale}

    def blend(
        self, group: int, own: float, others: Sequence[tuple[float, Values]], total: float
    ) -> None:
        """Sets the group to (own * its weights + the sum of weight * received weights) / `total` (0: the sum
        of the weights)."""
        views = self._of(group)
        came = [(weight, self._matching(group, values)) for weight, values in others]
        divisor = total or own + sum(weight for weight, _ in came)
        if not came or not divisor:
            return
        with torch.no_grad():
            # Bitwise the simulation's arithmetic, because the next rounding to 8 bits must give the same
            # numbers.
            for label, view in views.items():
                result = view * (own / divisor)
                for weight, values in came:
                    result = result + values[label] * (weight / divisor)
                view.copy_(result)

    def keep(self, group: int, values: Values) -> None:
        """Keeps another device's weights of a group. Those that it sent before are forgotten: their names
        come from the network, and must not pile up."""
        prefix = f"{KEPT}{group}/"
        self.kept = {name: t for name, t in self.kept.items() if not name.startswith(prefix)}
        for label, tensor in values.items():
            self.kept[prefix + label] = tensor.detach().clone()

    def _of(self, group: int) -> dict[str, Tensor]:
        if group not in self._views:
            raise WeftError(f"the program exchanges group {group}, which this device does not have")
        return self._views[group]

    def _matching(self, group: int, values: Values) -> Values:
        """The received values, if they have the names and shapes of this device's group."""
        views = self._of(group)
        if ROW in values:
            return self._from_row(group, values[ROW])
        if values.keys() != views.keys():
            odd = sorted(values.keys() ^ views.keys())[:3]
            raise WeftError(f"group {group}: {', '.join(odd)} are on one side only")
        for label, view in views.items():
            if values[label].shape != view.shape:
                raise WeftError(
                    f"group {group}: {label} came with shape {tuple(values[label].shape)}; "
                    f"here it has {tuple(view.shape)}"
                )
        return values

    def _from_row(self, group: int, row: Tensor) -> Values:
        views = self._of(group)
        sizes = [view.numel() for view in views.values()]
        if row.dim() != 1 or row.numel() != sum(sizes):
            raise WeftError(
                f"group {group}: a row of shape {tuple(row.shape)} came; {sum(sizes)} numbers are needed"
            )
        pieces = torch.split(row, sizes)
        return {k: p.view(v.shape) for (k, v), p in zip(views.items(), pieces, strict=True)}


def _view(s: Slice, state: Mapping[str, Tensor]) -> Tensor:
    tensor = state.get(s.name)
    if tensor is None or not tensor.is_floating_point():
        raise WeftError(f"{s.label} is to be exchanged, but {s.name} is no weight of this device")
    if s.last < 0:
        return tensor.detach()
    if not 0 <= s.first < s.last <= len(tensor):
        raise WeftError(f"{s.name} has {len(tensor)} places; {s.first} to {s.last} do not exist")
    return tensor.detach()[s.first : s.last]
