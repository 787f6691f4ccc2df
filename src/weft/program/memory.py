"""What a plan needs of each device's memory, and whether the fleet has it.

    memory_bytes(plan)["pi"]     # weights, gradients, optimizer state, activations, buffers
    check_memory(plan)           # WeftError that says who lacks how much, and what to try

A megabyte of a fleet file's `memory_mb` is a million bytes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from weft.errors import InputError, WeftError
from weft.plans.plan import Plan
from weft.program.lower.layout import Layout, layout_of
from weft.program.lower.schedule import forwards_ahead, micro_sizes
from weft.program.passes.stale import stale_lags

# Tensors that training keeps per weight: itself, its gradient, the optimizer's own.
COPIES = {"sgd": 2, "momentum": 3, "adam": 4, "adamw": 4}
BYTES_PER_MB = 1e6


class Stage(NamedTuple):
    """A range of layers on one device."""

    device: str
    first: int
    last: int


def memory_bytes(plan: Plan) -> dict[str, int]:
    """Bytes at the worst moment of a step, for every device with work."""
    if plan.swarm:
        return _in_a_swarm(plan)
    if plan.peers is not None:
        return _of_peers(plan)
    if plan.rounds:
        return _in_rounds(plan)
    layout = layout_of(plan)
    if layout.split:
        return _with_lanes(layout)
    lags = stale_lags(layout)
    stages = [Stage(d, *s) for d, s in zip(layout.pieces[0].devices, layout.segments, strict=True)]
    need = dict.fromkeys(plan.devices, 0)
    copies = _copies_of_weights(plan)
    for s, stage in enumerate(stages):
        layers = plan.profile.layers[stage.first : stage.last + 1]
        stashed = (
            lags[s].backward - lags[s].forward + 1
        )  # of the weights, beside the live ones; 1: none
        weights = sum(layer.param_bytes for layer in layers)
        need[stage.device] += (copies + (stashed if stashed > 1 else 0)) * weights
        need[stage.device] += stashed * _activations(plan, stages, s)
    for shard in plan.standby:  # and the message that brings the gradients
        layers = plan.profile.layers[shard.layers[0] : shard.layers[1] + 1]
        need[shard.device] += (copies + 1) * sum(layer.param_bytes for layer in layers)
    for device in need:
        need[device] += _buffers(plan, stages, device)
    return need


def _with_lanes(lanes: Layout) -> dict[str, int]:
    """All pieces may wait for their backward pass at once; a sum of gradients is held beside them."""
    plan = lanes.plan
    need = dict.fromkeys(plan.devices, 0)
    for g, (first, last) in enumerate(lanes.segments):
        layers = plan.profile.layers[first : last + 1]
        weights = sum(layer.param_bytes for layer in layers)
        holders = lanes.holders(g)
        shared = max(len(holders) - 1, 0)
        for device in holders:
            copies = _copies_of_weights(plan) + (shared if device == lanes.root(g) else shared > 0)
            need[device] += copies * weights
            saved = sum(layer.saved_bytes for layer in layers)
            need[device] += lanes.samples(g, device) * (saved + plan.profile.cut_bytes(first))
    return need


def _in_rounds(plan: Plan) -> dict[str, int]:
    """Weights of all rounds (turns of one device in a round share them), and the largest strips."""
    need = dict.fromkeys(plan.devices, 0)
    samples = sum(micro_sizes(plan.batch, plan.micro_batches)[: plan.in_flight])
    strips = dict.fromkeys(plan.devices, 0)
    for r in plan.rounds:
        weights = dict.fromkeys(plan.devices, 0)
        held = dict.fromkeys(plan.devices, 0)
        for turn in r.numbered.values():
            weights[turn.device] = max(weights[turn.device], turn.state_bytes)
            held[turn.device] += sum(strip.size for strip in (*turn.takes, *turn.gives))
        for device in plan.devices:
            need[device] += weights[device]
            strips[device] = max(strips[device], held[device])
    return {device: need[device] + strips[device] * samples for device in need}


def _in_a_swarm(plan: Plan) -> dict[str, int]:
    """A device's share of each layer's weights and activations, and all that it reads for them."""
    need = dict.fromkeys(plan.devices, 0)
    copies = _copies_of_weights(plan)
    for shard in plan.shards:
        layer, units = shard.layers[0], shard.part.units
        cost = plan.profile.layers[layer]
        assert plan.swarm is not None
        width = plan.swarm.values[layer + 1].shape[1]
        share = 1.0 if units is None else len(units) / width
        need[shard.device] += round(
            share * (copies * cost.param_bytes + plan.batch * cost.saved_bytes)
        )
        need[shard.device] += plan.batch * plan.profile.cut_bytes(layer)
    for copy in plan.swarm.copies if plan.swarm else ():
        assert plan.swarm is not None
        share = len(copy.units) / plan.swarm.values[copy.layer + 1].shape[1]
        need[copy.device] += round(share * plan.profile.layers[copy.layer].param_bytes)
    return need


def _of_peers(plan: Plan) -> dict[str, int]:
    """A network of its own, what it hands out, and what may come from all neighbours at once."""
    assert plan.peers is not None
    need = {}
    for peer in plan.peers.peers:
        held = sum(4 * held.numbers for held in peer.held)
        near = len(plan.peers.near(peer.device)) if plan.peers.shared == "gossip" else 1
        largest = micro_sizes(plan.batch, plan.micro_batches)[0]
        need[peer.device] = (
            _copies_of_weights(plan) * peer.weights_bytes
            + (1 + near) * held
            + largest * peer.saved_bytes
        )
    return need


def fits(plan: Plan) -> bool:
    """Whether every device has the memory that the plan needs."""
    return not _short(plan)


def check_memory(plan: Plan) -> None:
    """WeftError where a device has too little memory for its part of the plan."""
    short = _short(plan)
    if not short:
        return
    tries = ["give its layers to a larger device", f"a batch smaller than {plan.batch}"]
    if plan.micro_batches > 1 and plan.in_flight > 1:
        tries.append(f"in_flight below {plan.in_flight}")
    elif plan.micro_batches < plan.batch:
        tries.append(f"more than {plan.micro_batches} micro-batches")
    if plan.mode == "train" and COPIES[plan.optimizer] > COPIES["sgd"]:
        tries.append(f"sgd in place of {plan.optimizer}")
    lacks = "; ".join(
        f"device {name} needs {need / BYTES_PER_MB:.5g} MB, has {has / BYTES_PER_MB:.5g} MB "
        f"(memory_mb), {(need - has) / BYTES_PER_MB:.5g} MB too little"
        for name, need, has in short
    )
    raise WeftError(f"the plan does not fit: {lacks}. Try: {', or '.join(tries)}")


def _short(plan: Plan) -> list[tuple[str, int, float]]:
    """(device, bytes needed, bytes there) of every device with too little."""
    short = []
    for name, need in memory_bytes(plan).items():
        limit = plan.fleet.device(name).memory_mb
        if limit is not None and need > limit * BYTES_PER_MB:
            short.append((name, need, limit * BYTES_PER_MB))
    return short


def _copies_of_weights(plan: Plan) -> int:
    if plan.mode == "infer":
        return 1
    if plan.optimizer not in COPIES:
        raise InputError(f"plan: optimizer = {plan.optimizer!r}; allowed are {', '.join(COPIES)}")
    return COPIES[plan.optimizer]


def _activations(plan: Plan, stages: list[Stage], s: int) -> int:
    """Training keeps what the backward passes under way need; inference one layer's ends."""
    profile, stage = plan.profile, stages[s]
    layers = range(stage.first, stage.last + 1)
    sizes = micro_sizes(plan.batch, plan.micro_batches)
    if plan.mode == "infer":
        return sizes[0] * max(profile.cut_bytes(m) + profile.cut_bytes(m + 1) for m in layers)
    held = forwards_ahead(s, len(stages), plan.micro_batches, plan.in_flight)
    return sum(sizes[:held]) * sum(profile.layers[m].saved_bytes for m in layers)


def _buffers(plan: Plan, stages: list[Stage], device: str) -> int:
    """Messages that may wait at a device: its largest cut, as often as its neighbours run ahead."""
    sizes = micro_sizes(plan.batch, plan.micro_batches)
    largest = 0
    for at, left, right, held in _crossings(plan, stages):
        if left != right and device in (left, right):
            waiting = plan.profile.cut_bytes(at) * sum(sizes[:held])
            largest = max(largest, waiting * (plan.stale + 1))
    return largest


def _crossings(plan: Plan, stages: list[Stage]) -> list[tuple[int, str, str, int]]:
    """(cut, from, to, micro-batches that may be between the two) for every cut the plan makes."""
    count, flying = plan.micro_batches, min(plan.micro_batches, plan.in_flight)
    free_running = plan.mode == "train" and all(s.device != plan.source for s in stages)
    found = [(0, plan.source, stages[0].device, count if free_running else flying)]
    for s, (stage, after) in enumerate(pairwise(stages)):
        ahead = flying
        if plan.mode == "train":
            ahead = forwards_ahead(s, len(stages), count, plan.in_flight)
        found.append((after.first, stage.device, after.device, ahead))
    if plan.mode == "infer":
        found.append((stages[-1].last + 1, stages[-1].device, plan.source, flying))
    return found
