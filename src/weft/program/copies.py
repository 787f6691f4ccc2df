"""How often the devices of a training run copy their state for the case of a loss, and what that takes.

    copies = copies_of(plan)
    copies.every, copies.repeats_s       # minibatches between two copies; seconds that a loss repeats
    copies.bytes["pi"]                   # of the two copies that the device holds
    copies.lacking                       # devices whose memory has no room for them

A copy holds weights, buffers and the optimizer's memory, and with several minibatches in flight the versions
of weights that these have met. Each device keeps its newest two. The run keeps the
newest whole one, on the machine where it was started.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weft.graph.optimizers.words import slots_of
from weft.plans import registry
from weft.plans.plan import Plan
from weft.plans.protocols import GO_BACK
from weft.program.instructions import stashed
from weft.program.lower.lower import lower
from weft.program.memory import BYTES_PER_MB

# Copying, sending and receiving take about 1.7 ms of CPU time per megabyte of state, in all processes of a
# run together: 0.9 ms at the devices and 0.8 ms at the run. A copy every 50 times as long costs 2% of a run.
CPU_S_PER_BYTE = 1.7e-9
SHARE = 50
LEAST_S = 0.25
HELD = 2  # copies of its own state that a device holds


@dataclass(frozen=True)
class Copies:
    """What copies of a plan's devices take. A link that is too slow for this interval makes it longer."""

    every: int  # minibatches between two copies
    repeats_s: (
        float  # seconds of work that a loss repeats at most, if copies arrive within one interval
    )
    bytes: dict[str, int]  # that each device holds for its own copies
    lacking: dict[
        str, int
    ]  # bytes that a device has too little for its part and its copies together


def keeps_copies(plan: Plan) -> bool:
    """Whether a run of this plan keeps copies to go back to, unless the user says `--on-loss stop`."""
    goes_back = registry.behind(plan).recovery == GO_BACK
    return plan.mode == "train" and len(plan.devices) > 1 and goes_back


def copies_of(plan: Plan) -> Copies:
    """The interval that costs about 2% of the run, and the memory for the copies."""
    # A copy holds the weight and the optimizer's memory of it, and no gradient.
    tensors = 1 + slots_of(plan.optimizer)
    sizes = [layer.param_bytes for layer in plan.profile.layers]
    versions = _versions(plan, sizes)
    state = sum(sizes) * tensors + sum(versions.values())
    seconds = max(LEAST_S, SHARE * CPU_S_PER_BYTE * state)
    step_s = max(plan.predicted.seconds if plan.predicted else LEAST_S, 1e-6)
    every = max(1, math.ceil(seconds / step_s))
    held: dict[str, set[int]] = {}
    for shard in (*plan.shards, *plan.standby):
        first, last = shard.layers
        held.setdefault(shard.device, set()).update(range(first, last + 1))
    memory = {
        device: HELD
        * (
            tensors * sum(sizes[layer] for layer in layers if layer < len(sizes))
            + versions.get(device, 0)
        )
        for device, layers in held.items()
    }
    # A loss right before a copy is whole goes back to the one before it.
    return Copies(every, 2 * every * step_s, memory, _lacking(plan, memory))


def _lacking(plan: Plan, copies: dict[str, int]) -> dict[str, int]:
    """Planners do not count copies: `memory_mb` may have room for a device's part alone."""
    needed = plan.predicted.memory_bytes if plan.predicted else {}
    limits = {device.name: device.memory_mb for device in plan.fleet.devices}
    short = {
        name: math.ceil(needed.get(name, 0) + size - limit * BYTES_PER_MB)
        for name, size in copies.items()
        if (limit := limits.get(name)) is not None
    }
    return {name: size for name, size in short.items() if size > 0}


def _versions(plan: Plan, sizes: Sequence[int]) -> dict[str, int]:
    """The bytes of the versions of weights that minibatches in flight have met, in a copy of each device."""
    if not plan.stale:
        return {}
    return {
        device: sum(ahead * sum(sizes[a : b + 1]) for (a, b), ahead in stashed(code).items())
        for device, code in lower(plan).code.items()
    }
