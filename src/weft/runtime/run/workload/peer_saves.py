"""The weights of all peers as one set of tensors, for a save: `pi/shared.conv1.weight`.

    parts = joined(states)                 # {"pi/fc.weight": ..., "nuc/fc.weight": ...}
    states = by_device(parts)              # {"pi": {"fc.weight": ...}, "nuc": ...}
    own = resumed(own, parts)              # the peers' networks with saved weights

A device's name has no slash, so the first one ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from weft.errors import InputError
from weft.runtime.run.workload.networks import Own
from weft.runtime.run.workload.peer_networks import newcomer_state

Tensors = Mapping[str, Tensor]


def joined(states: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """Every device's tensors under its name."""
    return {f"{d}/{n}": tensor for d, state in states.items() for n, tensor in state.items()}


def by_device(parts: Tensors) -> dict[str, dict[str, Tensor]]:
    """Each device's tensors, out of `joined`."""
    states: dict[str, dict[str, Tensor]] = {}
    for path, tensor in parts.items():
        device, _, name = path.partition("/")
        states.setdefault(device, {})[name] = tensor
    return states


def whole_parts(own: Mapping[str, Own], states: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """The weights of every peer. One that is away gets what it would get if it came back now."""
    parts: dict[str, dict[str, Tensor]] = {}
    for device, network in own.items():
        state = states.get(device) or newcomer_state(device, own, states)
        # What no layer reads stays as it was.
        parts[device] = {name: state.get(name, old) for name, old in network.state.items()}
    return joined(parts)


def resumed(own: Mapping[str, Own], parts: Tensors) -> dict[str, Own]:
    """The peers' networks with the weights of an earlier run. InputError if they are of other networks."""
    mine = joined({device: network.state for device, network in own.items()})
    odd = sorted(mine.keys() ^ parts.keys())[:3]
    if odd:
        raise InputError(f"the folder holds other networks of peers: {', '.join(odd)} differ")
    for name, tensor in mine.items():
        kind, saved = (f"{t.dtype} {list(t.shape)}" for t in (tensor, parts[name]))
        if kind != saved:
            raise InputError(
                f"the folder holds other networks of peers: {name} is {saved} there, and {kind} here"
            )
    states = by_device(parts)
    return {device: replace(network, state=states[device]) for device, network in own.items()}
