"""From a plan of units to one that can be priced and run, and from there back to numbers.

    plan = swarmed(mapped(task, "stitchnet", "mix-mapped"), task)
    spread_of(plan), routes_of(plan)       # the same as numbers, for simulations and for recovery

Devices have the numbers that they have in the fleet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.radio import Matrix, fleet_delivery
from weft.graph.network import Blank, Graph
from weft.graph.split.units import input_of, output_of, unit_widths
from weft.plans import options
from weft.plans.plan import Part, Plan, Shard
from weft.plans.profile import Profile
from weft.plans.swarm import Message, Swarm
from weft.plans.task import Task
from weft.strategies.stitchnet.mapping import NOBODY, Spread
from weft.strategies.stitchnet.paths import Routes, chance

FLOAT = 4  # bytes of a value, where only a profile says how large a layer is


def crossings(profile: Profile, graph: Graph | None) -> tuple[Blank, ...]:
    """What crosses each cut, the input and the output included."""
    if graph is None:
        sizes = [profile.cut_bytes(m) // FLOAT for m in range(len(profile.layers) + 1)]
        return tuple(Blank(f"cut{m}", (1, size)) for m, size in enumerate(sizes))
    unit_widths(graph)  # an error of its own where a layer cannot be spread
    names = [input_of(graph, 0), *(output_of(graph, m) for m in range(len(graph.layers)))]
    values = [graph.values[name] for name in names]
    return tuple(Blank(n, v.shape, v.dtype) for n, v in zip(names, values, strict=True))


def swarmed(plan: Plan, task: Task, prr: Matrix | None = None) -> Plan:
    """A plan of units, as the mappings make it, with all that is needed to price and run it."""
    slot_ms = options.integer(task, "slot_ms", 0)
    return with_swarm(
        plan, task.graph, slot_ms=slot_ms, seed=options.integer(task, "seed", 1),
        every=options.integer(task, "every", 20), prr=prr,
    )  # fmt: skip


def with_swarm(
    plan: Plan,
    graph: Graph | None,
    *,
    slot_ms: float = 0.0,
    seed: int = 0,
    every: int = 20,
    prr: Matrix | None = None,
) -> Plan:
    """The same; `decisions` say who sends what to whom (`ways`) and what stands in for a loss."""
    check_links(plan.fleet)
    swarm = Swarm(
        coordinator=plan.source,
        messages=as_messages(plan.decisions["ways"]),
        values=crossings(plan.profile, graph),
        late=plan.decisions["update"],
        slot_ms=slot_ms,
        seed=seed,
        every=every,
        horizontal=tuple(plan.decisions["horizontal"]),
        prr=() if prr is None else tuple(tuple(float(p) for p in row) for row in prr),
        budget=plan.decisions.get("budget", 0),
        rescale=plan.decisions.get("rescale", False),
        copied=plan.decisions.get("copied", 0),
    )
    # What is in `swarm` need not be said twice: a plan is read by people too.
    short = {key: value for key, value in plan.decisions.items() if key != "ways"}
    return msgspec.structs.replace(plan, swarm=swarm, decisions=short)


def as_messages(ways: Sequence[Sequence[Any]]) -> tuple[Message, ...]:
    """From what the mappings say of each: slot, sender, receiver, packets direct and relayed, relay."""
    return tuple(
        Message(slot, source, dest, direct, relayed, via or "")
        for slot, source, dest, direct, relayed, via in ways
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


def known_links(plan: Plan) -> Matrix:
    """What the plan was made by: the measured packet reception ratios, else the fleet's own."""
    measured = plan.swarm.prr if plan.swarm else ()
    return np.array(measured) if measured else fleet_delivery(plan.fleet)


def believed(plan: Plan) -> Matrix:
    """How likely each message is to arrive, by what is known of the links: slots x n x n, row sends."""
    return chance(routes_of(plan), known_links(plan))


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
