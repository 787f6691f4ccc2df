"""StitchNet's plans: neurons over devices on lossy links. Also its baselines and `stitchnet+`.

    coordinator   the input and the output layer
    workers       units of each hidden layer, as the mapping says

In a plan, the coordinator's shard is a whole layer, and a worker's shards are sets of units. `plan.swarm`
has every message and its route. The packet reception ratios are those of the fleet's links (1 - loss).
With `probes=50` each link is measured by 50 packets, as a real swarm would do, and the plan is made from
these measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast, get_args

import numpy as np

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.radio import Matrix, fleet_delivery, probed
from weft.graph.split.lost_values import LostValues
from weft.plans import options
from weft.plans.delivery import Routes, chance
from weft.plans.plan import Plan
from weft.plans.swarm import Swarm
from weft.plans.task import Task
from weft.strategies.common.prefer import PREFER, prefers_time, price_or_never
from weft.strategies.stitchnet.airtime import AirTime
from weft.strategies.stitchnet.broadcast import broadcasts
from weft.strategies.stitchnet.mapping import MAPPERS, Spread, mix_mapped
from weft.strategies.stitchnet.paths import (
    Path,
    messages,
    packets,
    plan_routes,
    wanted,
)
from weft.strategies.stitchnet.search import Cost, PricedSpread, best_spread, cost_of, usual_drill
from weft.strategies.stitchnet.swarm import as_messages, check_links, crossings, unit_shards
from weft.strategies.stitchnet.timely import Pace, timely_spread

OPTIONS = {
    "path": "subpath | direct | coordinator: which way messages go",
    "update": "zero | own | none: what stands in for a message that got lost",
    "probes": "packets that measure each link before planning; without it the fleet's loss is taken",
    "seed": "of measuring and of random mappings",
}
MAPPING = {"mapping": "quality | random | reverse: who counts as well connected"}
PLUS_OPTIONS = {
    "packets": "a batch may take; where not given as many as stitchnet would take",
    "cost": "unicast | broadcast: whether each receiver of a message takes a packet, or one serves them all",
    "drill": "percent of the training minibatches that one worker is left out of, so that none is missed "
    "much, or none; where not given 2 for each worker, 10 to 25",
    "prefer": PREFER.format("stitchnet"),
    "update": OPTIONS["update"],
    "probes": OPTIONS["probes"],
    "seed": OPTIONS["seed"],
    "copies": "percent of each device's units that others of their layer compute too, in answering",
    "rescale": "no | yes: in testing, multiply what came by the weight expected over the weight that came",
}


def stitchnet(task: Task) -> Plan:
    """Mix-Mapped: workers with good links are horizontal, the others vertical."""
    order = options.choice(task, "mapping", ("quality", "random", "reverse"), "quality")
    mapper = "mix-mapped" if order == "quality" else f"mix-mapped-{order}"
    return mapped(task, "stitchnet", mapper)


def vertical(task: Task) -> Plan:
    """Each device has units of one layer only."""
    return mapped(task, "vertical", "vertical")


def horizontal(task: Task) -> Plan:
    """Each device has some units of every layer."""
    return mapped(task, "horizontal", "horizontal")


def random_units(task: Task) -> Plan:
    """Each unit is on a random device."""
    return mapped(task, "random-units", "random-units")


def average_layers(task: Task) -> Plan:
    """Half of the workers have units of two layers, half of three."""
    return mapped(task, "average-layers", "average-layers")


def stitchnet_plus(task: Task) -> Plan:
    """The spread and packets that are expected to deliver the most weight, with all devices and with any
    one worker silent. Devices may be unequal. A minibatch takes no longer than `stitchnet`'s, unless the user
    prefers accuracy."""
    if not prefers_time(task):
        return _plus(task, "accuracy", best_spread)
    prr = measured(task)
    usual = mix_mapped(prr, hidden_widths(task))
    limit_s = _seconds(task, prr, usual, plan_routes("subpath", prr, usual))
    plan = _plus_within(limit_s, in_8_bits(task), prr)
    # A codec makes very small messages larger.
    return plan if task.price(plan) <= limit_s else _plus_within(limit_s, task, prr)


def in_8_bits(task: Task) -> Task:
    """The same task. In training, values cross links in 8 bits where the user names no codec: a packet is a
    quarter as long, so that a message is sent several times in the time that it took once."""
    if task.mode != "train":
        return task
    return replace(task, options={"codec": "int8", "input_codec": "int8", **task.options})


def _plus_within(limit_s: float, task: Task, prr: Matrix) -> Plan:
    """The plan of `stitchnet+` whose minibatch takes no longer than `limit_s`."""
    values = crossings(task.profile, task.graph)
    codecs = options.codec(task), options.input_codec(task)
    pace = Pace(
        AirTime.of(task.fleet, values, task.batch, *codecs),
        limit_s,
        lambda spread: _seconds(task, prr, spread.spread, spread.routes),
    )
    return _plus(task, "time", partial(timely_spread, pace=pace))


def _seconds(task: Task, prr: Matrix, spread: Spread, routes: Routes) -> float:
    """How long a minibatch takes; infinite if there is no such plan."""
    return price_or_never(task, lambda: as_plan(task, "stitchnet+", prr, spread, routes, {}))


def _plus(task: Task, prefer: str, search: Callable[..., PricedSpread]) -> Plan:
    """The plan of the spread that `search` finds."""
    widths, prr = hidden_widths(task), measured(task)
    cost = cast(Cost, options.choice(task, "cost", get_args(Cost), "unicast"))
    usual = plan_routes("subpath", prr, mix_mapped(prr, widths))
    budget = options.integer(task, "packets", cost_of(usual, cost))
    best = search(prr, widths, budget, capacity=capacities(task.fleet), cost=cost)
    rescale = options.choice(task, "rescale", ("no", "yes"), "no") == "yes"
    # A minibatch stops if one of its workers is missing.
    gives_up = task.options.get("update") == "none"
    decided = {
        "delivered_weight": best.value,
        "delivered_without_one": best.least,
        "prefer": prefer,
    }
    return as_plan(
        task, "stitchnet+", prr, best.spread, best.routes, decided,
        budget=budget, rescale=rescale, copied=options.integer(task, "copies", 0, high=100), cost=cost,
        drill=drill_of(task, 0 if gives_up else usual_drill(best.spread)),
    )  # fmt: skip


def drill_of(task: Task, usual: int) -> int:
    """The user's percentage; "none" is 0; else `usual`."""
    if task.options.get("drill") == "none":
        return 0
    return options.integer(task, "drill", usual, high=100)


def capacities(fleet: Fleet) -> list[float] | None:
    """The relative speed of each device; None if all are equal or one is not known."""
    known = [device.gflops for device in fleet.devices if device.gflops is not None]
    unequal = len(known) == len(fleet.devices) and len(set(known)) > 1
    return known if unequal else None


def mapped(task: Task, name: str, mapper: str) -> Plan:
    """The plan of one of the paper's mappings."""
    widths, prr = hidden_widths(task), measured(task)
    spread = MAPPERS[mapper](prr, widths, None, seed_of(task))
    path = cast(Path, options.choice(task, "path", get_args(Path), "subpath"))
    routes = plan_routes(path, prr, spread)
    return as_plan(task, name, prr, spread, routes, {"mapping": mapper}, path=path)


def seed_of(task: Task) -> int:
    """The user's seed, else 1."""
    return options.integer(task, "seed", 1)


def measured(task: Task) -> Matrix:
    """The packet reception ratios that the plan uses; InputError for fewer than three devices."""
    if len(task.fleet.devices) < 3:
        raise InputError(
            f"the fleet has {len(task.fleet.devices)} devices; a swarm needs a coordinator and at "
            "least two workers"
        )
    delivery = fleet_delivery(task.fleet)
    if "probes" not in task.options:
        return delivery
    return probed(delivery, options.integer(task, "probes", 50), [seed_of(task), 1])


def hidden_widths(task: Task) -> tuple[int, ...]:
    """The number of neurons (or channels) of each layer except the last: these are spread.

    InputError if only a profile is known, or if the layers do not follow one another.
    """
    if task.graph is None:
        raise InputError(
            "neurons can only be spread where the network itself is known, not from a profile alone: "
            "leave --profile out"
        )
    graph = task.graph
    widths = []
    for layer in range(1, len(graph.layers)):
        names = graph.cut(layer)
        shape = graph.values[names[0]].shape
        if len(names) != 1 or len(shape) < 2:
            raise InputError(
                f"model {graph.name}: layer {graph.layers[layer - 1].name} hands {len(names)} tensors to "
                "the next; neurons are spread over networks whose layers follow one another"
            )
        widths.append(shape[1])
    if not widths:
        raise InputError(f"model {graph.name} has no hidden layer whose neurons could be spread")
    return tuple(widths)


def as_plan(
    task: Task,
    name: str,
    prr: Matrix,
    spread: Spread,
    routes: Routes,
    decided: Mapping[str, Any],  # this strategy's decisions, for people
    **policies: Any,  # further fields of Swarm: path, budget, rescale, copied
) -> Plan:
    """The plan of a spread and its messages."""
    check_links(task.fleet)
    names = task.fleet.names
    head = names[spread.coordinator]
    horizontal = tuple(names[d] for d in spread.horizontal)
    update = options.choice(task, "update", get_args(LostValues), "zero")
    expected = chance(routes, prr)[wanted(spread)]
    return Plan(
        strategy=name,
        model=task.profile.model,
        batch=task.batch,
        mode=task.mode,
        shards=unit_shards(spread, names),
        source=head,
        fleet=task.fleet,
        profile=task.profile,
        codec=options.codec(task),
        input_codec=options.input_codec(task),
        route=options.route(task),
        optimizer=task.optimizer,
        swarm=Swarm(
            coordinator=head,
            messages=as_messages(routes, names),
            values=crossings(task.profile, task.graph),
            late=cast(LostValues, update),
            slot_ms=options.integer(task, "slot_ms", 0),
            seed=options.integer(task, "seed", 1),
            every=options.integer(task, "every", 20),
            horizontal=horizontal,
            prr=tuple(tuple(float(p) for p in row) for row in prr),
            **policies,
        ),
        decisions={
            "coordinator": head,
            "horizontal": list(horizontal),
            "vertical": [names[d] for d in spread.vertical],
            **decided,
            **policies,
            "update": update,
            "messages": messages(routes),
            "packets": packets(routes),
            "broadcasts": broadcasts(routes),
            "expected_delivery": float(np.mean(expected)),
        },
    )
