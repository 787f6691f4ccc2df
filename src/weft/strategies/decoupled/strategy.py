"""The strategies of peers: turns the decision which peer has which classes into a plan.

    weft plan cnn5 --fleet peers.toml --strategy decoupled

`decide.py` decides which classes each peer has. This file adds who sends how many numbers to whom, how
often, and the time of a minibatch of each peer's network. The times are estimates from the profile of
the whole network. A run measures the peers' own networks and replaces the estimates.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from weft.plans import options
from weft.plans.peers import SHARED, Held, Peer, Peers
from weft.plans.plan import Part, Plan, Shard
from weft.plans.profile import DeviceTimes, Profile
from weft.plans.protocols import LEAVE_OUT, PEERS
from weft.plans.strategy import Refusals, strategy
from weft.plans.task import Task
from weft.strategies.common.prefer import PREFER, prefers_time
from weft.strategies.decoupled import decide
from weft.strategies.decoupled.decide import Chosen
from weft.strategies.decoupled.parts import NUMBER, Parts
from weft.strategies.decoupled.settings import FILTERS, OPTIONS, Settings, read_settings
from weft.strategies.decoupled.timely import quick_enough

NAMES = ("decoupled", "decoupled+", "fedavg")
_REFUSES: Refusals = {
    "adapt": "each device trains a network of its own: there is no split to change while it runs",
    "trace": "peers keep to their own clocks, and a trace of the fleet is not handed to them yet",
    "own data": "every peer opens its samples itself: give the name of a data set that all have",
}
_ABILITIES: dict[str, Any] = {
    "replan": False,
    "workload": PEERS,
    "recovery": LEAVE_OUT,
    "needs": frozenset({"data"}),
    "exact": False,
    "refuses": _REFUSES,
}


@strategy(
    "decoupled",
    "classes over peers without a server, by its paper",
    ("train",),
    OPTIONS,
    **_ABILITIES,
)
def decoupled(task: Task) -> Plan:
    """The paper's plan."""
    return peers_plan(task, "decoupled", decide.decoupled(task))


@strategy(
    "decoupled+",
    "the same: classes by speed and memory, and nobody waits",
    ("train",),
    {**OPTIONS, "prefer": PREFER.format("decoupled")},
    **_ABILITIES,
)
def decoupled_plus(task: Task) -> Plan:
    """The plan in which faster devices with more memory have more classes, and no peer waits.

    A minibatch takes no longer than that of `decoupled` or `fedavg`, unless the user prefers accuracy. Where
    taking the network apart takes longer than leaving it whole, it stays whole. If no choice is as quick as
    its rivals, the quickest one is taken.
    """
    plan_of = partial(peers_plan, task, "decoupled+")
    if not prefers_time(task):
        return plan_of(next(decide.lighter(task)))
    return plan_of(quick_enough(task, decide.lighter(task), plan_of, (decoupled, fedavg)))


@strategy(
    "fedavg",
    "the whole network at every device, averaged every round",
    ("train",),
    OPTIONS,
    **_ABILITIES,
)
def fedavg(task: Task) -> Plan:
    """The baseline: every device has the whole network, and all weights are averaged every round."""
    return peers_plan(task, "fedavg", decide.fedavg(task))


def peers_plan(task: Task, name: str, chosen: Chosen) -> Plan:
    """The plan of all peers.

    A peer's shard spans all layers: the shared layers whole, of the decoupled layers the structures of its
    classes.
    """
    settings = read_settings(task, plus=chosen.plus)
    peers = exchange(task, chosen, settings)
    layers = (0, len(task.profile.layers) - 1)
    return Plan(
        strategy=name,
        model=task.profile.model,
        batch=task.batch,
        mode=task.mode,
        shards=tuple(
            Shard(device, layers, Part(classes=held)) for device, held in chosen.sets.items()
        ),
        source=task.source if task.source in peers.devices else peers.devices[0],
        fleet=task.fleet,
        profile=own_times(task.profile, decide.layer_shares(task, chosen)),
        route=options.route(task),
        codec=settings.codec,
        optimizer=task.optimizer,
        peers=peers,
        decisions=decisions(task, chosen, peers, settings),
    )


def exchange(task: Task, chosen: Chosen, settings: Settings) -> Peers:
    """How the peers' networks are made, who exchanges what with whom, and after how many minibatches."""
    near = decide.neighbours(task, chosen)
    filters = chosen.parts.percents if chosen.parts else (FILTERS,)
    return Peers(
        peers=tuple(_peer(task, name, held, chosen.parts) for name, held in chosen.sets.items()),
        edges=tuple(sorted({(min(a, b), max(a, b)) for a, around in near.items() for b in around})),
        every=settings.steps,
        shared=settings.shared,
        late="newest" if chosen.plus else "wait",
        tail=settings.tail,
        pretrain=settings.pretrain,
        public=settings.public,
        deal=settings.deal,
        last=len(filters),
        filters_percent=filters,
        structured=not chosen.whole,
        by_samples=chosen.plus or chosen.whole,
    )


def decisions(task: Task, chosen: Chosen, peers: Peers, settings: Settings) -> dict[str, Any]:
    """What was decided, in words and numbers for people."""
    shares = decide.layer_shares(task, chosen)
    return {
        "sets": {name: list(held) for name, held in chosen.sets.items()},
        "topology": task.options.get("topology", "ring"),
        "neighbours": decide.neighbours(task, chosen),
        "structures": peers.structured,
        "last": peers.last,
        "filters_percent": list(peers.filters_percent),
        "rounds": settings.rounds,
        "steps": peers.every,
        "tail": peers.tail,
        "data": peers.deal,
        "shared": peers.shared,
        "exchange_codec": settings.codec,
        "asynchronous": peers.late == "newest",
        "step_s": {name: decide.peer_seconds(task, name, shares[name]) for name in chosen.sets},
        "pretrain": peers.pretrain,
        "public": peers.public,
        **(chosen.parts.words if chosen.parts else {}),
    }


def _peer(task: Task, name: str, classes: tuple[int, ...], parts: Parts | None) -> Peer:
    layers = task.profile.layers
    if parts is None:
        weights = sum(layer.param_bytes for layer in layers)
        return Peer(
            name,
            classes,
            (Held(SHARED, weights // NUMBER),),
            weights_bytes=weights,
            saved_bytes=sum(layer.saved_bytes for layer in layers),
        )
    structures = (Held(label, parts.structure_numbers) for label in classes)
    return Peer(
        name,
        classes,
        (Held(SHARED, parts.shared_numbers), *structures),
        weights_bytes=parts.weights.total(len(classes)),
        saved_bytes=parts.saved.total(len(classes)),
    )


def own_times(profile: Profile, shares: dict[str, list[float]]) -> Profile:
    """The profile with each peer's times for its own network: its share of each layer's time."""
    return msgspec.structs.replace(
        profile,
        devices={
            name: _scaled(times, shares[name]) if name in shares else times
            for name, times in profile.devices.items()
        },
    )


def _scaled(times: DeviceTimes, shares: list[float]) -> DeviceTimes:
    def by_layer(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(v * s for v, s in zip(values, shares, strict=True)) if values else ()

    return msgspec.structs.replace(
        times,
        forward_s=by_layer(times.forward_s),
        backward_s=by_layer(times.backward_s),
        update_s=by_layer(times.update_s),
    )
