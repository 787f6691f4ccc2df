"""Plans of layers and of samples: which device computes which layers for which samples.

    layout_of(plan)        # HierTrain: the samples of s, of o and of l, each through its own devices

The shards of one range of samples are a *lane*: they tile the layers, and the lanes tile the batch. A plan
of whole layers has one lane. Lanes are cut into *pieces*, samples that travel together. Layers between two
neighbouring cuts of any lane are a *segment*: a device computes a segment in one go, and devices that
share a segment add up its gradients.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from weft.errors import InputError
from weft.plans.plan import Part, Plan, Shard
from weft.program.lower.schedule import micro_sizes


class Piece(NamedTuple):
    """A few samples that go through the layers together; `devices[g]` computes segment g for them."""

    micro: int
    first: int
    samples: int
    devices: tuple[str, ...]
    source: str  # the device that has these samples


@dataclass(frozen=True, eq=False)
class Layout:
    """A plan as segments and pieces."""

    plan: Plan
    segments: tuple[tuple[int, int], ...]  # first and last layer
    pieces: tuple[Piece, ...]
    split: bool  # whether the shards list their samples; False: one lane of whole layers

    @cached_property
    def _holders(self) -> tuple[tuple[str, ...], ...]:
        computing = [{p.devices[g] for p in self.pieces} for g in range(len(self.segments))]
        return tuple(tuple(d for d in self.plan.devices if d in those) for those in computing)

    @cached_property
    def _roots(self) -> tuple[str, ...]:
        ends = {piece.devices[-1] for piece in self.pieces}
        weights = [
            [(device in ends, self.samples(g, device)) for device in holders]
            for g, holders in enumerate(self._holders)
        ]
        return tuple(
            holders[weight.index(max(weight))]
            for holders, weight in zip(self._holders, weights, strict=True)
        )

    def holders(self, g: int) -> tuple[str, ...]:
        """The devices that compute segment g for some piece, in the plan's order."""
        return self._holders[g]

    def root(self, g: int) -> str:
        """The device that adds up segment g's gradients: the one that computes the loss, else the one with
        most samples."""
        return self._roots[g]

    def held_by(self, device: str) -> list[int]:
        """The segments of a device, first layers first."""
        return [g for g, holders in enumerate(self._holders) if device in holders]

    def samples(self, g: int, device: str) -> int:
        return sum(piece.samples for piece in self.pieces if piece.devices[g] == device)


def splits_samples(plan: Plan) -> bool:
    """Whether the shards of a plan name their samples."""
    return any(shard.part.samples is not None for shard in plan.shards)


_latest: list[Layout] = []  # of the last plan: a search asks several times for the same one


def layout_of(plan: Plan) -> Layout:
    """The layout of a plan. Raises InputError if its shards do not tile the batch and the layers."""
    if not _latest or _latest[0].plan is not plan:
        _latest[:] = [_layout_of(plan)]
    return _latest[0]


def _layout_of(plan: Plan) -> Layout:
    split = splits_samples(plan)
    lanes = _lanes(plan) if split else {(0, plan.batch): _whole_lane(plan)}
    _check_counts(plan, split)
    _check_sources(plan, list(lanes))
    starts = {0} | {shard.layers[0] for shards in lanes.values() for shard in shards}
    # Every shared layer is a segment, so that its gradient can be sent at once.
    if plan.stream and split:
        starts |= set(range(max(starts) + 1))
    starts |= {layer for layer, _ in plan.norms}  # the norms of a segment's first layer are pooled
    bounds = [*sorted(starts), len(plan.profile.layers)]
    segments = tuple((a, b - 1) for a, b in itertools.pairwise(bounds))
    size = -(-plan.batch // plan.micro_batches)
    pieces: list[Piece] = []
    for (offset, samples), shards in lanes.items():
        devices = tuple(_holder(shards, a) for a, _ in segments)
        first = offset
        for n in micro_sizes(samples, -(-samples // size) if split else plan.micro_batches):
            pieces.append(Piece(len(pieces), first, n, devices, plan.owner_of(first)))
            first += n
    return Layout(plan, segments, tuple(pieces), split)


def _check_sources(plan: Plan, lanes: list[tuple[int, int]]) -> None:
    """InputError where a lane has samples of several devices with data."""
    for first, samples in lanes if plan.owners else ():
        owners = plan.owner_of(first), plan.owner_of(first + samples - 1)
        if owners[0] != owners[1]:
            raise InputError(
                f"plan: samples {first} to {first + samples} lie on {owners[0]} and {owners[1]}; "
                "each needs shards of its own (a part with samples and an offset)"
            )


def _check_counts(plan: Plan, split: bool) -> None:
    # If samples are split, there may be more micro-batches than samples: then every sample is a piece.
    if plan.micro_batches < 1 or (plan.micro_batches > plan.batch and not split):
        raise InputError(
            f"plan: micro_batches = {plan.micro_batches}; 1 to batch = {plan.batch} are allowed"
        )
    if plan.in_flight < 1:
        raise InputError(f"plan: in_flight = {plan.in_flight}; at least 1 is allowed")
    if plan.ahead < 1:
        raise InputError(f"plan: ahead = {plan.ahead}; at least 1 is allowed")
    if split or plan.micro_batches == 1:
        return
    seen: set[str] = set()
    for shard in plan.shards:
        if shard.device in seen:
            raise InputError(
                f"plan: device {shard.device} has several shards and micro_batches = "
                f"{plan.micro_batches}; join its shards or set micro_batches = 1"
            )
        seen.add(shard.device)


def _whole_lane(plan: Plan) -> list[Shard]:
    """The shards of a plan of whole layers. Raises InputError if they do not tile the layers in order."""
    expected = 0
    for shard in plan.shards:
        if shard.part != Part():
            raise InputError(
                f"plan: shard {shard.device} layers {list(shard.layers)} has part {shard.part}; "
                "only whole layers (an empty part) can be lowered"
            )
        if shard.layers[0] != expected or shard.layers[1] < shard.layers[0]:
            raise InputError(
                f"plan: shard {shard.device} has layers {list(shard.layers)}; "
                f"the next shard must begin at layer {expected} and hold at least one"
            )
        _check_device(plan, shard)
        expected = shard.layers[1] + 1
    if expected != len(plan.profile.layers):
        raise InputError(
            f"plan: shards hold layers up to {expected - 1}; "
            f"the profile of {plan.model} has layers 0 to {len(plan.profile.layers) - 1}"
        )
    return list(plan.shards)


def _lanes(plan: Plan) -> dict[tuple[int, int], list[Shard]]:
    """The shards of each lane, by (offset, samples)."""
    if plan.mode != "train":
        raise InputError("plan: shards with samples are for training; inference has whole batches")
    lanes: dict[tuple[int, int], list[Shard]] = {}
    for shard in plan.shards:
        part = shard.part
        if part != Part(samples=part.samples, offset=part.offset) or not part.samples:
            raise InputError(
                f"plan: shard {shard.device} layers {list(shard.layers)} has part {part}; "
                "where samples are split every shard needs samples >= 1 and nothing else"
            )
        _check_device(plan, shard)
        lanes.setdefault((part.offset, part.samples), []).append(shard)
    lanes = dict(sorted(lanes.items()))
    expected = 0
    for (offset, samples), shards in lanes.items():
        if offset != expected:
            raise InputError(
                f"plan: samples {expected} to {offset} belong to no lane or to two; "
                f"the lanes must tile the batch of {plan.batch}"
            )
        expected += samples
        _check_lane(plan, offset, samples, shards)
    if expected != plan.batch:
        raise InputError(f"plan: its lanes have {expected} samples; the batch has {plan.batch}")
    return lanes


def _check_lane(plan: Plan, offset: int, samples: int, shards: list[Shard]) -> None:
    layer = 0
    for shard in shards:
        first, last = shard.layers
        if first != layer or last < first:
            raise InputError(
                f"plan: {shard.device} has layers [{first}, {last}] for samples {offset} to "
                f"{offset + samples}; the next shard of this lane must begin at layer {layer}"
            )
        layer = last + 1
    if layer != len(plan.profile.layers):
        raise InputError(f"plan: no device has layer {layer} for samples from {offset} on")


def _check_device(plan: Plan, shard: Shard) -> None:
    if shard.device not in plan.profile.devices:
        raise InputError(
            f"profile: devices has no {shard.device!r}, which has a shard of layers "
            f"{list(shard.layers)}; it has {', '.join(plan.profile.devices)}"
        )


def _holder(shards: list[Shard], layer: int) -> str:
    return next(s.device for s in shards if s.layers[0] <= layer <= s.layers[1])
