"""From a spread of units and its routes to a plan, and back.

    plan = swarm_plan(task, "stitchnet", spread, routes)
    spread_of(plan), routes_of(plan)       # the same as numbers, for simulations and for recovery

Devices have the numbers that they have in the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.radio import Matrix
from weft.graph.network import Graph
from weft.graph.unit_lists import input_of, output_of, unit_widths
from weft.plan import options
from weft.plan.plan import Part, Plan, Shard
from weft.plan.profile import Profile
from weft.plan.stitchnet_mapping import NOBODY, Spread
from weft.plan.stitchnet_paths import Routes
from weft.plan.swarm import Blank, Lost, Message, Swarm
from weft.plan.task import Task

FLOAT = 4  # bytes of a value, where only a profile says how large a layer is


def hidden_widths(profile: Profile, graph: Graph | None) -> tuple[int, ...]:
    """Units of each hidden layer: of the network, else from the bytes that leave the layers."""
    if graph is not None:
        return unit_widths(graph)
    if len(profile.layers) < 2:
        raise InputError(f"{profile.model} has one layer; to be spread by units it needs two")
    return tuple(layer.output_bytes // FLOAT for layer in profile.layers[:-1])


def crossings(profile: Profile, graph: Graph | None) -> tuple[Blank, ...]:
    """What crosses each cut, the input and the output included."""
    if graph is None:
        sizes = [profile.cut_bytes(m) // FLOAT for m in range(len(profile.layers) + 1)]
        return tuple(Blank(f"cut{m}", (1, size)) for m, size in enumerate(sizes))
    names = [input_of(graph, 0), *(output_of(graph, m) for m in range(len(graph.layers)))]
    values = [graph.values[name] for name in names]
    return tuple(Blank(n, v.shape, v.dtype) for n, v in zip(names, values, strict=True))


def swarm_plan(
    task: Task,
    strategy: str,
    spread: Spread,
    routes: Routes,
    *,
    late: Lost = "zero",
    slot_ms: float = 0.0,
    seed: int = 0,
    every: int = 20,
    prr: Matrix | None = None,
    decisions: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of a spread network, not yet priced."""
    names = task.fleet.names
    if len(names) != spread.devices:
        raise InputError(f"the spread is over {spread.devices} devices, the fleet has {len(names)}")
    coordinator = names[spread.coordinator]
    swarm = Swarm(
        coordinator=coordinator,
        messages=messages_of(routes, names),
        values=crossings(task.profile, task.graph),
        late=late,
        slot_ms=slot_ms,
        seed=seed,
        every=every,
        horizontal=tuple(names[d] for d in spread.horizontal),
        prr=() if prr is None else tuple(tuple(float(p) for p in row) for row in prr),
    )
    return Plan(
        strategy=strategy,
        model=task.profile.model,
        batch=task.batch,
        mode=task.mode,
        shards=unit_shards(spread, names),
        source=coordinator,
        fleet=task.fleet,
        profile=task.profile,
        route=options.route(task),
        codec=options.codec(task),
        input_codec=options.input_codec(task),
        optimizer=task.optimizer,
        swarm=swarm,
        decisions=dict(decisions or {}),
    )


def unit_shards(spread: Spread, names: Sequence[str]) -> tuple[Shard, ...]:
    """One shard for every device and layer, and the output layer for the coordinator."""
    shards = [
        Shard(names[d], (layer, layer), Part(units=tuple(int(u) for u in spread.units(d, layer))))
        for layer in range(len(spread.owners))
        for d in spread.workers
        if len(spread.units(d, layer))
    ]
    last = len(spread.owners)
    return (*shards, Shard(names[spread.coordinator], (last, last)))


def messages_of(routes: Routes, names: Sequence[str]) -> tuple[Message, ...]:
    found = []
    for slot, i, j in np.argwhere((routes.direct + routes.relayed) > 0):
        relayed = int(routes.relayed[slot, i, j])
        via = names[routes.via[i, j]] if relayed else ""
        direct = int(routes.direct[slot, i, j])
        found.append(Message(int(slot), names[i], names[j], direct, relayed, via))
    return tuple(found)


def spread_of(plan: Plan) -> Spread:
    """Who owns which unit, by the plan's shards."""
    swarm = plan.swarm
    assert swarm is not None
    number = {name: n for n, name in enumerate(plan.fleet.names)}
    owners = [np.full(value.shape[1], NOBODY, dtype=np.int64) for value in swarm.values[1:-1]]
    for shard in plan.shards:
        if shard.part.units is not None:
            owners[shard.layers[0]][list(shard.part.units)] = number[shard.device]
    horizontal = tuple(number[d] for d in swarm.horizontal)
    return Spread(len(number), number[swarm.coordinator], tuple(owners), horizontal)


def routes_of(plan: Plan) -> Routes:
    """The plan's messages as matrices."""
    swarm = plan.swarm
    assert swarm is not None
    number = {name: n for n, name in enumerate(plan.fleet.names)}
    shape = (swarm.slots, len(number), len(number))
    direct, relayed = (np.zeros(shape, dtype=np.int64) for _ in range(2))
    via = np.full(shape[1:], number[swarm.coordinator])
    for m in swarm.messages:
        place = m.slot, number[m.source], number[m.dest]
        direct[place], relayed[place] = m.direct, m.relayed
        if m.relayed:
            via[place[1:]] = number[m.via]
    return Routes(direct, relayed, via)


def check_links(fleet: Fleet) -> None:
    """InputError where two devices have no link: every two of a swarm hear each other, if badly."""
    direct = {(hop.source, hop.dest) for hop in fleet.hops()}
    for a in fleet.names:
        for b in fleet.names:
            if a != b and (a, b) not in direct:
                raise InputError(
                    f"fleet: {a} has no link to {b}; a swarm needs a [[link]] between every two "
                    "devices (its loss may be up to 0.999)"
                )
