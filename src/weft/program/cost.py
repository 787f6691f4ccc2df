"""The time that an instruction takes on a device, from the plan's profile. For the simulator and for
emulation."""

from __future__ import annotations

from weft.plans.profile import Profile
from weft.program.instructions import Backward, Forward, Instruction, Update

TIMED = (Forward, Backward, Update)  # a tuple: a search asks a hundred thousand times


def compute_seconds(profile: Profile, device: str, i: Instruction) -> float:
    """Seconds of an instruction that is no message. The loss is part of the last layer's backward pass.
    Loading and emitting cost nothing."""
    if not isinstance(i, TIMED):
        return 0.0
    if i.work:
        layers = range(i.layers[0], i.layers[1] + 1)
        shares = zip(layers, i.work, strict=True)
        return sum(share * _whole(profile, device, i, layer) for layer, share in shares)
    if isinstance(i, Forward):
        return profile.devices[device].forward(*i.layers, i.samples)
    if isinstance(i, Backward):
        return profile.devices[device].backward(*i.layers, i.samples)
    return profile.devices[device].update(*i.layers)


def _whole(profile: Profile, device: str, i: Forward | Backward | Update, layer: int) -> float:
    """One layer's seconds if this device computed all of it."""
    times = profile.devices[device]
    if isinstance(i, Update):
        return times.update(layer, layer)
    passes = times.forward if isinstance(i, Forward) else times.backward
    return passes(layer, layer, i.samples)
