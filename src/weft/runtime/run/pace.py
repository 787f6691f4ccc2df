"""How slow an emulated device is: the times that its instructions shall take.

The network is measured on this machine; a device that is to have g effective GFLOPS gets these times,
scaled so that the whole network takes as long as g would. A compute instruction is really computed
and then waits until its time is over, so ten slow devices fit on two cores. Why not by the CPU time that it
used: docs/decisions/emulated-speed.md. A device faster than this machine cannot be emulated: it runs
at this machine's speed, and the caller is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from weft.fleet.fleet import Fleet
from weft.graph.measure import measure
from weft.graph.network import Graph
from weft.graph.optimizers.optimizer import Optimizer
from weft.plans.derive import graph_profile, measured_times
from weft.plans.profile import Profile
from weft.runtime.emulate.forked import settle

REST_S = 0.01  # emulated devices wait for each other, so measure what they find after a pause


@dataclass(frozen=True)
class Emulation:
    """What emulated devices take, and which of them this machine is too slow for."""

    profile: Profile  # what the emulated devices will take
    slowdown: dict[str, float]  # against this machine
    too_fast: tuple[str, ...]  # devices that this machine cannot be as fast as
    gflops_here: float

    @property
    def paced(self) -> frozenset[str]:
        """Devices slower than this machine: their instructions wait until their time is over."""
        return frozenset(name for name, factor in self.slowdown.items() if factor > 1.0)


def emulation(
    graph: Graph,
    state: Mapping[str, Tensor],
    fleet: Fleet,
    *,
    batch: int,
    training: bool,
    optimizer: Optimizer | None = None,
    given: Profile | None = None,
    repeats: int = 7,
) -> Emulation:
    """Measures the network here; `given` is a profile whose total times the devices shall have."""
    settle()  # the nodes' imports would disturb the measurement
    times = measure(
        graph, state, batch=batch, repeats=repeats, training=training, optimizer=optimizer,
        rest_s=REST_S,
    )  # fmt: skip
    here = measured_times(times)
    last = len(graph.layers) - 1
    seconds = here.forward(0, last, batch) + here.backward(0, last, batch)
    flops = graph.forward_flops * batch
    if training:  # backward costs twice the forward pass, but the first layer's only once
        flops = 3 * flops - graph.layers[0].forward_flops * batch
    gflops_here = flops / seconds / 1e9
    slowdown, too_fast = {}, []
    for device in fleet.devices:
        wanted = 1.0
        if given is not None:
            theirs = given.devices[device.name]
            total = theirs.forward(0, last, batch)
            total += theirs.backward(0, last, batch) if training else 0.0
            wanted = total / seconds
        elif device.gflops is not None:
            wanted = gflops_here / device.gflops
        if wanted < 0.98:
            too_fast.append(device.name)
        slowdown[device.name] = max(1.0, wanted)
    profile = graph_profile(graph, {name: here.scaled(s) for name, s in slowdown.items()})
    return Emulation(profile, slowdown, tuple(too_fast), gflops_here)
