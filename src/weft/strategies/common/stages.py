"""Plans in which each layer is whole on one device, and the fastest device of a tier.

layer_plan(task, "mine", ["pi", "pi", "nuc"])      # layers 0 and 1 on the pi, layer 2 on the nuc
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from weft.errors import InputError
from weft.fleet.fleet import Tier
from weft.fleet.owners import Owner, first_samples
from weft.plans import options
from weft.plans.plan import Part, Plan, Shard
from weft.plans.task import Task
from weft.strategies.common.costs import Costs


def runs(assignment: Sequence[str]) -> list[tuple[str, int, int]]:
    """(device, first layer, last layer) for each group of neighbouring layers on one device.

    >>> runs(["pi", "pi", "nuc"])
    [('pi', 0, 1), ('nuc', 2, 2)]
    """
    groups: list[tuple[str, int, int]] = []
    first = 0
    for device, layers in groupby(assignment):
        last = first + len(list(layers)) - 1
        groups.append((device, first, last))
        first = last + 1
    return groups


def layer_plan(
    task: Task,
    strategy: str,
    assignment: Sequence[str],
    *,
    micro_batches: int = 1,
    in_flight: int = 1,
    decisions: dict[str, Any] | None = None,
) -> Plan:
    """The plan in which device `assignment[l]` holds layer l.

    Its decisions hold `devices` and `cuts` (the number of layers before each change of device).
    """
    shards = tuple(Shard(device, (first, last)) for device, first, last in runs(assignment))
    lanes = _by_owner(shards, task.owners)
    return Plan(
        strategy=strategy,
        model=task.profile.model,
        batch=task.batch,
        mode=task.mode,
        shards=lanes,
        source=task.source,
        owners=task.owners,
        # Each owner's samples are pieces of their own. The device computes the piece that arrived first.
        schedule="eager" if task.owners and micro_batches > 1 else "staged",
        fleet=task.fleet,
        profile=task.profile,
        micro_batches=micro_batches,
        in_flight=in_flight,
        ahead=options.ahead(task, micro_batches),
        codec=options.codec(task),
        input_codec=options.input_codec(task),
        route=options.route(task),
        optimizer=task.optimizer,
        decisions={
            "devices": [shard.device for shard in shards],
            "cuts": [shard.layers[0] for shard in shards[1:]],
            **(decisions or {}),
        },
    )


def _by_owner(shards: tuple[Shard, ...], owners: tuple[Owner, ...]) -> tuple[Shard, ...]:
    """The same layers once for each owner's samples. One owner of all data: the shards as they are."""
    if not owners:
        return shards
    firsts = first_samples([owner.samples for owner in owners])
    return tuple(
        Shard(shard.device, shard.layers, Part(owner.samples, first))
        for owner, first in zip(owners, firsts, strict=True)
        for shard in shards
    )


def fastest(task: Task, costs: Costs, tier: Tier, strategy: str) -> str:
    """The device of a tier that needs the least time for the whole network.

    Only devices that the source can reach count. InputError if there is none.
    """
    names = [device.name for device in task.fleet.devices if device.tier == tier]
    if not names:
        tiers = ", ".join(f"{device.name} ({device.tier})" for device in task.fleet.devices)
        raise InputError(
            f"strategy {strategy} needs a device of tier {tier!r}; the fleet has only: {tiers}"
        )
    near = [name for name in names if task.fleet.connected(task.source, name)]
    if not near:
        # Raises an InputError that says what is not connected.
        task.fleet.route(task.source, names[0])
    return min(near, key=costs.total)
