"""A swarm's plan after devices are lost: their units cloned to others, the messages made anew.

    after = after_loss(plan, ["n3"], importance(weights))

Pairs of devices go on as they did, straight or by a relay; a new pair goes the way that its measured packet
reception ratios make likelier. A relay that is lost relays no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from weft.errors import WeftError
from weft.plan.plan import Plan
from weft.plan.stitchnet_mapping import Spread
from weft.plan.stitchnet_paths import wanted
from weft.plan.stitchnet_recovery import Importance, clone, drop
from weft.plan.swarm import Message, Swarm
from weft.plan.swarm_plan import spread_of, unit_shards


def after_loss(plan: Plan, lost: Sequence[str], importance: Importance) -> Plan:
    """The plan without some workers, one version on; WeftError where nobody can go on."""
    swarm = plan.swarm
    assert swarm is not None
    names = plan.fleet.names
    if swarm.coordinator in lost:
        raise WeftError(
            f"{swarm.coordinator} is lost: it has the samples and the output layer, so that nobody else "
            "can go on. Start the run again with --resume, without it"
        )
    gone = [names.index(device) for device in lost]
    spread = _cloned(spread_of(plan), gone, importance, swarm.seed)
    if not all((owners >= 0).any() for owners in spread.owners):
        raise WeftError(
            f"{', '.join(lost)}: lost, and with them the last unit of a layer; too few devices are "
            "left to go on"
        )
    return msgspec.structs.replace(
        plan,
        shards=unit_shards(spread, names),
        version=plan.version + 1,
        swarm=msgspec.structs.replace(
            swarm,
            messages=_messages(swarm, spread, names, frozenset(lost)),
            horizontal=tuple(names[d] for d in spread.horizontal),
        ),
    )


def _cloned(spread: Spread, gone: Sequence[int], importance: Importance, seed: int) -> Spread:
    """Every lost device's units to those that are left: not to one that is lost as well."""
    after = spread
    for device in gone:
        after = drop(after, device)
    owners = list(after.owners)
    for device in gone:
        alone = spread
        for other in gone:
            alone = alone if other == device else drop(alone, other)
        found = clone(alone, device, importance, seed).owners
        for layer, before in enumerate(spread.owners):
            owners[layer] = np.where(before == device, found[layer], owners[layer])
    return replace(after, owners=tuple(owners))


def _messages(
    swarm: Swarm, spread: Spread, names: Sequence[str], lost: frozenset[str]
) -> tuple[Message, ...]:
    known = {(m.slot, m.source, m.dest): m for m in swarm.messages}
    pairs = {(m.source, m.dest): m for m in swarm.messages}
    found = []
    for slot, i, j in np.argwhere(wanted(spread)).tolist():
        source, dest = names[i], names[j]
        like = known.get((slot, source, dest)) or pairs.get((source, dest))
        if like is None:
            like = _new_pair(swarm, names, i, j)
        if like.via in lost:
            like = Message(slot, source, dest, max(like.direct, 1))
        found.append(Message(slot, source, dest, like.direct, like.relayed, like.via))
    return tuple(found)


def _new_pair(swarm: Swarm, names: Sequence[str], i: int, j: int) -> Message:
    """Two devices that had nothing for each other: by the coordinator where that is likelier."""
    c = names.index(swarm.coordinator)
    relays = any(m.relayed for m in swarm.messages) and c not in (i, j) and swarm.prr
    if relays and swarm.prr[i][c] * swarm.prr[c][j] > swarm.prr[i][j]:
        return Message(0, names[i], names[j], 0, 1, swarm.coordinator)
    return Message(0, names[i], names[j])
