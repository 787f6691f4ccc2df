"""Small fleets for runs in which devices are lost: one for each kind of strategy.

fleet_for(registry.get("chain"), step_flops=2e7)

Devices are slow on purpose: a step takes some 20 ms, so that a fault finds the run on its way. No fleet
loses messages.
"""

from __future__ import annotations

from itertools import combinations

import msgspec

from weft.fleet.fleet import Device, Fleet, Link
from weft.plans.protocols import CLONE, PEERS
from weft.plans.strategy import Strategy

STEP_FLOPS = 1.5e6  # of the small networks that these speeds are for


def meshed(*devices: Device) -> Fleet:
    """Every two devices have a fast link of their own that loses nothing."""
    ends = combinations([device.name for device in devices], 2)
    return Fleet(devices, tuple(Link(pair, 200.0, 200.0, 0.5) for pair in ends))


TIERS = meshed(
    Device("pi", gflops=0.02, data=True), Device("nuc", "edge", gflops=0.05),
    Device("box", "edge", gflops=0.04), Device("cloud", "cloud", gflops=0.06),
)  # fmt: skip
# A device so slow that a policy which watches the run gives layers away.
ROAMING = meshed(
    Device("pi", gflops=0.01, data=True), Device("nuc", "edge", gflops=0.2),
    Device("box", "edge", gflops=0.2), Device("cloud", "cloud", gflops=0.2),
)  # fmt: skip
SWARM = meshed(*(Device(f"n{k}", gflops=0.02, data=k == 0) for k in range(5)))
HOME = meshed(Device("desk", gflops=0.2, data=True), Device("laptop", gflops=0.2),
              Device("tablet", gflops=0.2))  # fmt: skip


def kind_of_fleet(strategy: Strategy) -> Fleet:
    """By what the strategy's record says, never by its name."""
    if strategy.workload == PEERS:
        return HOME
    if strategy.recovery == CLONE:
        return SWARM
    return ROAMING if strategy.online is not None else TIERS


def fleet_for(strategy: Strategy, step_flops: float) -> Fleet:
    """The same fleet, with devices whose steps take as long for a network of other size."""
    fleet = kind_of_fleet(strategy)
    times = max(1.0, step_flops / STEP_FLOPS)
    devices = tuple(
        msgspec.structs.replace(device, gflops=(device.gflops or 1.0) * times)
        for device in fleet.devices
    )
    return Fleet(devices, fleet.link, fleet.medium)
