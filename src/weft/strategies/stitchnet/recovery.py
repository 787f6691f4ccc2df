"""A swarm's plan after devices are lost: who takes over what, and the messages made anew.

    after = after_loss(plan, ["n3"], importance(weights))

By the paper's rule the lost units that are worth it are cloned to others. Pairs of devices go on as they did,
straight or by a relay; a new pair goes the way that its measured packet reception ratios make likelier. A
relay that is lost relays no more. `stitchnet+` spreads what is left anew, with the same budget of packets.

Where the coordinator is lost, the survivor with the best score takes over the input and the output layer. It
keeps its hidden units: they are up to date and where they are, and between them and what it has taken over
nothing gets lost any more, while cloning would take the weights of three in four of a vertical device's
units away.
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
    """The plan without some devices, one version on; WeftError where nobody can go on.

    `lost` are all devices that cannot be counted on, those included that have no part in this plan.
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
    """Who is the coordinator from now on: the same, or the survivor with the best score."""
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
    """How many units were with the lost devices, and how many of them have a place again."""
    gone = [before.fleet.names.index(device) for device in lost]
    owners = list(zip(spread_of(before).owners, spread_of(after).owners, strict=True))
    units = sum(int(np.isin(old, gone).sum()) for old, _ in owners)
    return units, sum(int((np.isin(old, gone) & (new >= 0)).sum()) for old, new in owners)


def _anew(
    plan: Plan, spread: Spread, gone: Sequence[int], importance: Importance, budget: int
) -> tuple[Spread, tuple[Message, ...]]:
    """The spread over the survivors that delivers most; units that do not fit are let go."""
    found = recover(
        spread, known_links(plan), budget, gone, importance, capacity=capacities(plan.fleet),
        cost=plan.swarm.cost if plan.swarm else "unicast",
    )  # fmt: skip
    return found.spread, as_messages(found.routes, plan.fleet.names)


def _by_path(plan: Plan, spread: Spread) -> tuple[Message, ...]:
    """All messages anew, by the plan's kind of path, now with another coordinator to relay them."""
    assert plan.swarm is not None
    usual: Path = "subpath" if any(m.relayed for m in plan.swarm.messages) else "direct"
    routes = plan_routes(plan.swarm.path or usual, known_links(plan), spread)
    return as_messages(routes, plan.fleet.names)


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
