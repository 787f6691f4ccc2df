"""A profile for the same network in other layers.

    relayered(profile, graph, in_sequence(graph))

Measured times of a layer that falls apart are shared out by FLOPs.
"""

from __future__ import annotations

import msgspec

from weft.graph.network import Graph
from weft.plans.derive import layer_costs
from weft.plans.profile import BY_LAYER, DeviceTimes, Profile

Shares = list[dict[int, float]]  # for every new layer: which part of which old layers it is


def relayered(profile: Profile, old: Graph, new: Graph) -> Profile:
    """The profile of `old` as one of `new`."""
    costs = layer_costs(new)
    if [c.forward_flops for c in costs] == [c.forward_flops for c in profile.layers]:
        return msgspec.structs.replace(profile, layers=costs)
    shares = _shares(old, new)
    devices = {name: _shared_out(times, shares) for name, times in profile.devices.items()}
    return msgspec.structs.replace(profile, layers=costs, devices=devices)


def _shares(old: Graph, new: Graph) -> Shares:
    """By FLOPs; a layer without any goes by its number of operators."""
    from weft.graph.costs import forward_flops

    place = {node.name: m for m, layer in enumerate(new.layers) for node in layer.nodes}
    shares: Shares = [{} for _ in new.layers]
    for m, layer in enumerate(old.layers):
        nodes = [node for node in layer.nodes if node.name in place]
        flops = [forward_flops(node, old.values, old.state) for node in nodes]
        weights = flops if sum(flops) else [1.0] * len(nodes)
        for node, weight in zip(nodes, weights, strict=True):
            part = shares[place[node.name]]
            part[m] = part.get(m, 0.0) + weight / sum(weights)
    return shares


def _shared_out(times: DeviceTimes, shares: Shares) -> DeviceTimes:
    def part(per_layer: tuple[float, ...]) -> tuple[float, ...]:
        if not per_layer:
            return ()
        return tuple(sum(per_layer[m] * share for m, share in of.items()) for of in shares)

    return msgspec.structs.replace(times, **{key: part(getattr(times, key)) for key in BY_LAYER})
