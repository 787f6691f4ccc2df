"""Plans that split the samples too: every range of samples is a lane with a way of its own.

    lanes_of(plan)        # HierTrain: the samples of s, of o and of l, each through its own devices

A lane's shards tile the layers; the lanes tile the batch. Lanes are cut into pieces of about
batch / micro_batches samples, which travel one by one. Layers between two neighbouring cuts of any
lane form a segment: what a device computes in one go, and what devices that share it average.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

from weft.errors import InputError
from weft.plans.plan import Part, Plan
from weft.program.lower.schedule import micro_sizes


class Piece(NamedTuple):
    """A few samples that go through the layers together; `way[g]` computes segment g for them."""

    micro: int
    first: int
    samples: int
    way: tuple[str, ...]


@dataclass(frozen=True)
class Lanes:
    """A plan of lanes, spelled out."""

    plan: Plan
    segments: tuple[tuple[int, int], ...]  # first and last layer
    pieces: tuple[Piece, ...]

    def holders(self, g: int) -> tuple[str, ...]:
        """The devices that compute segment g for some piece, in the plan's order."""
        here = {piece.way[g] for piece in self.pieces}
        return tuple(device for device in self.plan.devices if device in here)

    def root(self, g: int) -> str:
        """Who adds up segment g's gradients: who computes the loss, else who has most samples."""
        holders = self.holders(g)
        ends = {piece.way[-1] for piece in self.pieces}
        return max(
            holders,
            key=lambda d: (d in ends, sum(p.samples for p in self.pieces if p.way[g] == d)),
        )

    def samples(self, g: int, device: str) -> int:
        return sum(piece.samples for piece in self.pieces if piece.way[g] == device)


def has_lanes(plan: Plan) -> bool:
    return any(shard.part.samples is not None for shard in plan.shards)


def lanes_of(plan: Plan) -> Lanes:
    """The lanes of a plan; InputError where they do not tile the batch and the layers."""
    if plan.micro_batches < 1:  # more than there are samples: every sample is a piece
        raise InputError(f"plan: micro_batches = {plan.micro_batches}; at least 1 is allowed")
    if plan.ahead < 1:
        raise InputError(f"plan: ahead = {plan.ahead}; at least 1 is allowed")
    ways = _ways(plan)
    starts = {0} | {first for stages in ways.values() for _, first, _ in stages}
    count = len(plan.profile.layers)
    if plan.stream:  # every shared layer on its own, so that its gradient can leave at once
        starts |= set(range(max(starts) + 1))
    bounds = [*sorted(starts), count]
    segments = tuple((a, b - 1) for a, b in itertools.pairwise(bounds))
    size = -(-plan.batch // plan.micro_batches)
    pieces: list[Piece] = []
    for (offset, samples), stages in ways.items():
        way = tuple(_holder(stages, a) for a, _ in segments)
        first = offset
        for n in micro_sizes(samples, -(-samples // size)):
            pieces.append(Piece(len(pieces), first, n, way))
            first += n
    return Lanes(plan, segments, tuple(pieces))


def _ways(plan: Plan) -> dict[tuple[int, int], list[tuple[str, int, int]]]:
    """By (offset, samples): the shards of the lane as (device, first layer, last layer)."""
    if plan.mode != "train":
        raise InputError("plan: shards with samples are for training; inference has whole batches")
    ways: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
    for shard in plan.shards:
        part = shard.part
        if part != Part(samples=part.samples, offset=part.offset) or not part.samples:
            raise InputError(
                f"plan: shard {shard.device} layers {list(shard.layers)} has part {part}; "
                "where samples are split every shard needs samples >= 1 and nothing else"
            )
        if shard.device not in plan.profile.devices:
            raise InputError(f"profile: devices has no {shard.device!r}, which has a shard")
        ways.setdefault((part.offset, part.samples), []).append((shard.device, *shard.layers))
    expected = 0
    for (offset, samples), stages in sorted(ways.items()):
        if offset != expected:
            raise InputError(
                f"plan: samples {expected} to {offset} belong to no lane or to two; "
                f"the lanes must tile the batch of {plan.batch}"
            )
        expected += samples
        layer = 0
        for device, first, last in stages:
            if first != layer or last < first:
                raise InputError(
                    f"plan: {device} has layers [{first}, {last}] for samples {offset} to "
                    f"{offset + samples}; the next shard of this lane must begin at layer {layer}"
                )
            layer = last + 1
        if layer != len(plan.profile.layers):
            raise InputError(f"plan: nobody has layer {layer} for samples from {offset} on")
    if expected != plan.batch:
        raise InputError(f"plan: its lanes have {expected} samples; the batch has {plan.batch}")
    return dict(sorted(ways.items()))


def _holder(stages: list[tuple[str, int, int]], layer: int) -> str:
    return next(device for device, first, last in stages if first <= layer <= last)
