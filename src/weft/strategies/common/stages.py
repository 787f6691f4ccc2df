"""Plans of whole layers: from a device for every layer to a Plan; the fastest of a tier."""

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
    """(device, first layer, last layer) of neighbouring layers on one device.

    >>> runs(["pi", "pi", "nuc"])
    [('pi', 0, 1), ('nuc', 2, 2)]
    """
    found: list[tuple[str, int, int]] = []
    first = 0
    for device, layers in groupby(assignment):
        last = first + len(list(layers)) - 1
        found.append((device, first, last))
        first = last + 1
    return found


def layer_plan(
    task: Task,
    strategy: str,
    assignment: Sequence[str],
    *,
    micro_batches: int = 1,
    in_flight: int = 1,
    decisions: dict[str, Any] | None = None,
) -> Plan:
    """The plan in which `assignment[l]` holds layer l.

    Its decisions always say `devices` and `cuts` (layers before each change of device).
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
        # Samples of several owners come in pieces of their own: whichever is there is computed.
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
    """The same layers for the samples of each owner; whole layers where one device has all data."""
    if not owners:
        return shards
    firsts = first_samples([owner.samples for owner in owners])
    return tuple(
        Shard(shard.device, shard.layers, Part(owner.samples, first))
        for owner, first in zip(owners, firsts, strict=True)
        for shard in shards
    )


def fastest(task: Task, costs: Costs, tier: Tier, strategy: str) -> str:
    """The device of a tier that runs the whole network soonest, among those the source reaches."""
    names = [device.name for device in task.fleet.devices if device.tier == tier]
    if not names:
        tiers = ", ".join(f"{device.name} ({device.tier})" for device in task.fleet.devices)
        raise InputError(
            f"strategy {strategy} needs a device of tier {tier!r}; the fleet has only: {tiers}"
        )
    near = [name for name in names if task.fleet.connected(task.source, name)]
    if not near:
        task.fleet.route(task.source, names[0])  # says that there is no way, and from where
    return min(near, key=costs.total)
