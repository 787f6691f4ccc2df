"""Strategies of peers: the decision of who has which classes, made ready to be priced and run.

    weft plan cnn5 --fleet peers.toml --strategy decoupled

`decide.py` decides; here the plan gets what its exchange needs: who sends how many numbers to whom,
how often, and what a minibatch of each peer's own network takes. These are estimates from the whole network's
profile. A run captures and measures the peers' networks and replaces them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from weft.codecs.registry import CodecName
from weft.plans import options
from weft.plans.peers import SHARED, Held, Peer, Peers
from weft.plans.plan import Plan
from weft.plans.profile import DeviceTimes, Profile
from weft.plans.protocols import LEAVE_OUT, PEERS
from weft.plans.strategy import WAITS, Refusals, strategy
from weft.plans.task import Task
from weft.strategies.decoupled.decide import (
    OPTIONS,
    decoupled,
    decoupled_plus,
    fedavg,
    structure_share,
)

NUMBER = 4  # bytes
NAMES = ("decoupled", "decoupled+", "fedavg")
BEFORE = {
    "pretrain": "minibatches, at the machine where you type, before the network is decoupled",
    "public": "samples, the first of the set, that everybody has: for them and for calibration",
}
_REFUSES: Refusals = {
    "adapt": "each device trains a network of its own: there is no split to change while it runs",
    "trace": "peers keep to their own clocks, and a trace of the fleet is not handed to them yet",
    "own loss": "peers train with cross-entropy, by which their networks are taken apart in classes",
    "own data": "every peer opens its samples itself: give the name of a data set that all have",
    "save and resume": "peers keep their weights to themselves until the end",
    "falls silent": WAITS,
}
_ABILITIES: dict[str, Any] = {
    "replan": False,
    "workload": PEERS,
    "recovery": LEAVE_OUT,
    "needs": frozenset({"data"}),
    "exact": False,
    "refuses": _REFUSES,
}
_OWN = {**OPTIONS, **BEFORE, "shared": "ring | gossip | hub: how the shared layers are averaged"}


@strategy(
    "decoupled", "classes over peers without a server, by its paper", ("train",), _OWN, **_ABILITIES
)
def decoupled_peers(task: Task) -> Plan:
    return peered(task, decoupled(_known(task)))


@strategy(
    "decoupled+",
    "the same: classes by speed and memory, and nobody waits",
    ("train",),
    _OWN,
    **_ABILITIES,
)
def decoupled_plus_peers(task: Task) -> Plan:
    return peered(task, decoupled_plus(_known(task)))


@strategy(
    "fedavg",
    "the whole network at every device, averaged every round",
    ("train",),
    _OWN,
    **_ABILITIES,
)
def fedavg_peers(task: Task) -> Plan:
    return peered(task, fedavg(_known(task)))


def _known(task: Task) -> Task:
    """The task without the option that is read here: how shared layers are averaged."""
    left = {key: value for key, value in task.options.items() if key != "shared"}
    return dataclasses.replace(task, options=left)


def peered(task: Task, plan: Plan) -> Plan:
    """The plan with its exchange, and with the times of the peers' own networks."""
    told = plan.decisions
    free = bool(told["asynchronous"])
    whole = not told["structures"]
    names = tuple(told["sets"])
    pairs = {tuple(sorted((a, b))) for a, near in told["neighbours"].items() for b in near}
    shared = options.choice(
        task, "shared", ("gossip",) if free else ("ring", "gossip", "hub"),
        "gossip" if free else "ring",
    )  # fmt: skip
    share = structure_share(task, plus=free)
    count = len(task.profile.layers)
    shares = {
        name: [1.0] * count if whole else share(len(held)) for name, held in told["sets"].items()
    }
    peers = Peers(
        peers=tuple(
            _peer(task, name, tuple(told["sets"][name]), shares[name], () if whole else share(1))
            for name in names
        ),
        edges=tuple((a, b) for a, b in sorted(pairs)),
        every=told["steps"],
        shared=shared,  # type: ignore[arg-type]
        late="newest" if free else "wait",
        tail=told["tail"],
    )
    source = plan.source if plan.source in names else names[0]
    before = {
        "pretrain": options.integer(task, "pretrain", 100),
        "public": options.integer(task, "public", 500),
    }
    return msgspec.structs.replace(
        plan,
        peers=peers,
        source=source,
        codec=exchange_codec(task, free),
        profile=own_times(task.profile, shares),
        decisions={
            **told,
            "shared": shared,
            "exchange_codec": exchange_codec(task, free),
            **before,
        },
    )


def exchange_codec(task: Task, free: bool) -> CodecName:
    """8 bits for decoupled+: a peer's own weights stay exact, only what comes is rounded."""
    if "codec" in task.options:
        return options.codec(task)
    return "int8" if free else "none"


def _peer(
    task: Task, name: str, classes: tuple[int, ...], shares: Sequence[float], one: Sequence[float]
) -> Peer:
    """`one`: the share of each layer that one class takes; none where all is shared."""
    layers = task.profile.layers
    if not one:
        held = [Held(SHARED, sum(layer.param_bytes for layer in layers) // NUMBER)]
    else:
        first = next(i for i, s in enumerate(one) if s != 1.0)
        structure = sum(layers[i].param_bytes * one[i] for i in range(first, len(layers)))
        held = [Held(SHARED, sum(layer.param_bytes for layer in layers[:first]) // NUMBER)]
        held += [Held(label, max(1, round(structure / NUMBER))) for label in classes]
    pairs = list(zip(layers, shares, strict=True))
    return Peer(
        name,
        classes,
        tuple(held),
        weights_bytes=round(sum(layer.param_bytes * s for layer, s in pairs)),
        saved_bytes=round(sum(layer.saved_bytes * min(s, 1.0) for layer, s in pairs)),
    )


def own_times(profile: Profile, shares: dict[str, list[float]]) -> Profile:
    """Every peer's times for its own network: its share of each layer's work."""
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

    return DeviceTimes(
        by_layer(times.forward_s),
        by_layer(times.backward_s),
        by_layer(times.update_s),
        times.forward_call_s,
        times.backward_call_s,
    )
