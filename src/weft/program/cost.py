"""What an instruction costs a device, by the plan's profile: for the simulator and for emulation."""

from __future__ import annotations

from weft.plan.profile import Profile
from weft.program.instructions import Backward, Forward, Instruction, Update


def compute_seconds(profile: Profile, device: str, i: Instruction) -> float:
    """Seconds of what is no message. The loss is part of the last layer's backward pass; loading
    and emitting cost nothing."""
    if isinstance(i, Forward) and i.work:
        times, layers = profile.devices[device], range(i.layers[0], i.layers[1] + 1)
        return sum(
            share * times.forward(layer, layer, i.samples)
            for layer, share in zip(layers, i.work, strict=True)
        )
    if isinstance(i, Forward):
        return profile.devices[device].forward(*i.layers, i.samples)
    if isinstance(i, Backward):
        return profile.devices[device].backward(*i.layers, i.samples)
    if isinstance(i, Update):
        return profile.devices[device].update(*i.layers)
    return 0.0
