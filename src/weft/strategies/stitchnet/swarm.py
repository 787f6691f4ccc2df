"""Turns a spread and routes (numbers) into the shards and messages of a plan, and back.

    unit_shards(spread, names), as_messages(routes, names)      # from numbers to a plan
    spread_of(plan)                                             # and back

A device's number is its place in the fleet. `weft.plans.delivery` turns messages into numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.graph.network import Blank, Graph
from weft.graph.split.units import input_of, output_of, unit_widths
from weft.plans.delivery import Routes
from weft.plans.plan import Part, Plan, Shard
from weft.plans.profile import Profile
from weft.plans.swarm import Message
from weft.strategies.stitchnet.mapping import NOBODY, Spread

FLOAT = 4  # bytes of a value if only a profile is known


def crossings(profile: Profile, graph: Graph | None) -> tuple[Blank, ...]:
    """The tensors that cross each cut, with the input and the output."""
    if graph is None:
        sizes = [profile.cut_bytes(m) // FLOAT for m in range(len(profile.layers) + 1)]
        return tuple(Blank(f"cut{m}", (1, size)) for m, size in enumerate(sizes))
    unit_widths(graph)  # raises an InputError if a layer cannot be spread
    names = [input_of(graph, 0), *(output_of(graph, m) for m in range(len(graph.layers)))]
    values = [graph.values[name] for name in names]
    return tuple(Blank(n, v.shape, v.dtype) for n, v in zip(names, values, strict=True))


def as_messages(routes: Routes, names: Sequence[str]) -> tuple[Message, ...]:
    """All messages of a minibatch: sender, receiver, slot, how often, and the relay."""
    sent = []
    for slot, s, d in np.argwhere((routes.direct + routes.relayed) > 0).tolist():
        direct, relayed = int(routes.direct[slot, s, d]), int(routes.relayed[slot, s, d])
        via = names[routes.via[s, d]] if relayed else ""
        sent.append(Message(slot, names[s], names[d], direct, relayed, via))
    return tuple(sent)


def unit_shards(spread: Spread, names: Sequence[str]) -> tuple[Shard, ...]:
    """One shard for each device and layer, and the output layer for the coordinator."""
    shards = [
        Shard(names[d], (layer, layer), Part(units=tuple(int(u) for u in spread.units(d, layer))))
        for layer in range(len(spread.owners))
        for d in spread.workers
        if len(spread.units(d, layer))
    ]
    last = len(spread.owners)
    return (*shards, Shard(names[spread.coordinator], (last, last)))


def spread_of(plan: Plan) -> Spread:
    """Which device owns which unit, from the plan's shards."""
    swarm = plan.swarm
    assert swarm is not None
    number = {name: n for n, name in enumerate(plan.fleet.names)}
    owners = [np.full(value.shape[1], NOBODY, dtype=np.int64) for value in swarm.values[1:-1]]
    for shard in plan.shards:
        if shard.part.units is not None:
            owners[shard.layers[0]][list(shard.part.units)] = number[shard.device]
    horizontal = tuple(number[d] for d in swarm.horizontal)
    return Spread(len(number), number[swarm.coordinator], tuple(owners), horizontal)


def check_links(fleet: Fleet) -> None:
    """InputError if two devices have no link. In a swarm all devices can hear each other, some badly."""
    direct = {(hop.source, hop.dest) for hop in fleet.hops()}
    for a in fleet.names:
        for b in fleet.names:
            if a != b and (a, b) not in direct:
                raise InputError(
                    f"fleet: {a} has no link to {b}; a swarm needs a [[link]] between every two "
                    "devices (its loss may be up to 0.999)"
                )
