"""A swarm's plan after devices are lost: who gets the lost units, and the new messages.

    after = after_loss(plan, ["n3"], importance(weights))

By the paper's rule the important lost units are cloned to other devices. Two devices that already had
messages keep their route, direct or through a relay. A new pair takes the route that is likelier by the
measured packet reception ratios. A lost relay is not used any more. `stitchnet+` makes a new spread over
the devices that are left, with the same budget of packets.

If the coordinator is lost, the device with the best score takes the input and the output layer. It keeps
its hidden units. They are up to date, and messages between them and the new layers cannot be lost. If
they were cloned instead, three of four units of a vertical device would lose their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from weft.errors import WeftError
from weft.plans.delivery import known_links, routes_of
from weft.plans.plan import Plan
from weft.plans.swarm import Message, Swarm
from weft.strategies.stitchnet.broadcast import broadcasts
from weft.strategies.stitchnet.copies import copied
from weft.strategies.stitchnet.importance import Importance, clone, drop
from weft.strategies.stitchnet.mapped import capacities
from weft.strategies.stitchnet.mapping import Spread, elect
from weft.strategies.stitchnet.paths import Path, plan_routes, wanted
from weft.strategies.stitchnet.respread import recover
from weft.strategies.stitchnet.swarm import as_messages, spread_of, unit_shards


def after_loss(plan: Plan, lost: Sequence[str], importance: Importance) -> Plan:
    """The next version of the plan without the lost devices; WeftError if nobody can go on.

    `lost` are all devices that are out, also those without a part in this plan.
    """
    assert plan.swarm is not None
    names = plan.fleet.names
    head = _head(plan, lost)
    swarm = msgspec.structs.replace(plan.swarm, coordinator=names[head])
    led = replace(spread_of(plan), coordinator=head)
    gone = [names.index(device) for device in lost]
    if swarm.budget:
        spread, sent = _anew(plan, led, gone, importance, swarm.budget)
    else:
        spread = _cloned(led, gone, importance, swarm.seed)
        if names[head] == plan.source:
            sent = _messages(swarm, spread, names, frozenset(lost))
        else:
            sent = _by_path(plan, spread)
    if not all((owners >= 0).any() for owners in spread.owners):
        raise WeftError(
            f"{', '.join(lost)}: lost, and with them the last unit of a layer; too few devices are "
            "left to go on"
        )
    horizontal = tuple(names[d] for d in spread.horizontal)
    packets = sum(m.direct + 2 * m.relayed for m in sent)
    after = msgspec.structs.replace(
        plan,
        shards=unit_shards(spread, names),
        source=names[head],
        version=plan.version + 1,
        swarm=msgspec.structs.replace(swarm, messages=sent, horizontal=horizontal, copies=()),
    )
    decided = after.deciding(
        coordinator=names[head],
        horizontal=list(horizontal),
        vertical=[names[d] for d in spread.vertical],
        messages=len(sent),
        packets=packets,
        broadcasts=broadcasts(routes_of(after)),
    )
    return copied(decided, importance)


def _head(plan: Plan, lost: Sequence[str]) -> int:
    """The coordinator from now on: the same device, or the one with the best score of those left."""
    names = plan.fleet.names
    if plan.source not in lost:
        return names.index(plan.source)
    left = [d for d in plan.devices if d not in lost]
    if len(left) < 2:
        raise WeftError(
            f"{', '.join(lost)}: lost; a swarm needs a coordinator and a worker, and "
            f"{left[0] if left else 'nobody'} is left. Start more nodes, and the run with --resume"
        )
    return elect(known_links(plan), [names.index(d) for d in left])


def moved_units(before: Plan, after: Plan, lost: Sequence[str]) -> tuple[int, int]:
    """How many units the lost devices had, and how many of these have an owner again."""
    gone = [before.fleet.names.index(device) for device in lost]
    owners = list(zip(spread_of(before).owners, spread_of(after).owners, strict=True))
    units = sum(int(np.isin(old, gone).sum()) for old, _ in owners)
    return units, sum(int((np.isin(old, gone) & (new >= 0)).sum()) for old, new in owners)


def _anew(
    plan: Plan, spread: Spread, gone: Sequence[int], importance: Importance, budget: int
) -> tuple[Spread, tuple[Message, ...]]:
    """The spread over the remaining devices that delivers most. Units without room are dropped."""
    best = recover(
        spread, known_links(plan), budget, gone, importance, capacity=capacities(plan.fleet),
        cost=plan.swarm.cost if plan.swarm else "unicast",
    )  # fmt: skip
    return best.spread, as_messages(best.routes, plan.fleet.names)


def _by_path(plan: Plan, spread: Spread) -> tuple[Message, ...]:
    """All messages with the plan's kind of path and the new coordinator as relay."""
    assert plan.swarm is not None
    usual: Path = "subpath" if any(m.relayed for m in plan.swarm.messages) else "direct"
    routes = plan_routes(plan.swarm.path or usual, known_links(plan), spread)
    return as_messages(routes, plan.fleet.names)


def _cloned(spread: Spread, gone: Sequence[int], importance: Importance, seed: int) -> Spread:
    """The units of every lost device, cloned to devices that are not lost."""
    after = spread
    for device in gone:
        after = drop(after, device)
    owners = list(after.owners)
    for device in gone:
        alone = spread
        for other in gone:
            alone = alone if other == device else drop(alone, other)
        cloned = clone(alone, device, importance, seed).owners
        for layer, before in enumerate(spread.owners):
            owners[layer] = np.where(before == device, cloned[layer], owners[layer])
    return replace(after, owners=tuple(owners))


def _messages(
    swarm: Swarm, spread: Spread, names: Sequence[str], lost: frozenset[str]
) -> tuple[Message, ...]:
    known = {(m.slot, m.source, m.dest): m for m in swarm.messages}
    pairs = {(m.source, m.dest): m for m in swarm.messages}
    sent = []
    for slot, i, j in np.argwhere(wanted(spread)).tolist():
        source, dest = names[i], names[j]
        like = known.get((slot, source, dest)) or pairs.get((source, dest))
        if like is None:
            like = _new_pair(swarm, names, i, j)
        if like.via in lost:
            like = Message(slot, source, dest, max(like.direct, 1))
        sent.append(Message(slot, source, dest, like.direct, like.relayed, like.via))
    return tuple(sent)


def _new_pair(swarm: Swarm, names: Sequence[str], i: int, j: int) -> Message:
    """The message of two devices that had none before: through the coordinator if that is likelier."""
    c = names.index(swarm.coordinator)
    relays = any(m.relayed for m in swarm.messages) and c not in (i, j) and swarm.prr
    if relays and swarm.prr[i][c] * swarm.prr[c][j] > swarm.prr[i][j]:
        return Message(0, names[i], names[j], 0, 1, swarm.coordinator)
    return Message(0, names[i], names[j])
