"""Makes the rounds of a plan from blocks of layers and each device's share.

    rounds = rounds_of(graph, [Block((0, 3), "rows"), Block((4, 4), "model")], devices, gateway)
    shards_of(rounds)                                # what each device computes, for the plan

`graph` has its layers in sequence (weft.graph.sequence). A value that a block makes and that is needed
later is shared out evenly, or in proportion to the block's shares. What a device takes follows from that.
A value that a round neither reads nor makes has no part in that round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.errors import InputError
from weft.graph.network import Graph
from weft.plans.plan import Part, Shard
from weft.plans.rounds import Round, RoundMode, Turn
from weft.strategies.coopai.block_turns import Block, Turns
from weft.strategies.coopai.row_turns import Owned

__all__ = ["Block", "rounds_of", "shards_of"]


def rounds_of(
    graph: Graph,
    blocks: Sequence[Block],
    devices: Sequence[str],
    gateway: str,
    overlap: bool | Sequence[bool] = False,
    halves: float = 0.0,
) -> tuple[Round, ...]:
    """The rounds in which `devices` compute the blocks through the gateway.

    `overlap`, for all blocks or for each: a device first computes the rows for which it has everything, then
    the others. If it has nothing, as in the first round, it computes the upper half before the lower one,
    if that adds at most the share `halves` to the computation (0: never). InputError if blocks or shares
    do not fit the network and the devices.
    """
    _check(graph, blocks, devices)
    slicer = Slicer(graph, devices, gateway)
    first_inner = [overlap] * len(blocks) if isinstance(overlap, bool) else overlap
    owned: Owned = {device: {} for device in devices}
    rounds = []
    for block, inner in zip(blocks, first_inner, strict=True):
        made = slicer.round(block, owned if inner else None, halves)
        if not made.sums:
            _remember(owned, made.turns)
        rounds.append(made)
    return tuple(rounds)


class Slicer:
    """Makes rounds for these devices, one by one. What is needed again is computed once."""

    def __init__(self, graph: Graph, devices: Sequence[str], gateway: str) -> None:
        self.graph, self.devices, self.gateway = graph, devices, gateway
        self._turns: dict[tuple[tuple[int, int], RoundMode], Turns] = {}

    def turns(self, layers: tuple[int, int], mode: RoundMode) -> Turns:
        """The turns of these layers in this mode."""
        if (layers, mode) not in self._turns:
            self._turns[layers, mode] = Turns(self.graph, layers, mode, self.devices, self.gateway)
        return self._turns[layers, mode]

    def round(self, block: Block, owned: Owned | None, halves: float) -> Round:
        """The round of a block. `owned` says what each device has, if inner rows come first; else None."""
        maker = self.turns(block.layers, block.mode)
        if owned is not None:
            owned = {
                device: {name: have[name] for name in maker.reads if name in have}
                for device, have in owned.items()
            }
        turns = maker.of_devices(block.shares, owned, halves)
        sums = maker.made.data is not None
        return Round(block.layers, block.mode, turns, maker.before, maker.after, sums)


def shards_of(rounds: Iterable[Round]) -> tuple[Shard, ...]:
    """What each device computes: one shard per device and round."""
    shards = []
    for each in rounds:
        devices = dict.fromkeys(turn.device for turn in each.turns)
        last = max((turn.gives for turn in each.turns), key=len)[-1].value
        for device in devices:
            turns = [turn for turn in each.turns if turn.device == device]
            part = Part() if len(devices) == 1 else _part(each.mode, turns, last)
            shards.append(Shard(device, each.layers, part))
    return tuple(shards)


def _remember(owned: Owned, turns: Iterable[Turn]) -> None:
    """Add what devices make in a round to what they have. Strips of one device are side by side."""
    for turn in turns:
        have = owned[turn.device]
        for strip in turn.gives:
            first, last = have.get(strip.value, (strip.first, strip.last))
            have[strip.value] = (min(first, strip.first), max(last, strip.last))


def _part(mode: RoundMode, turns: Sequence[Turn], last: str) -> Part:
    if mode == "whole":
        return Part()
    if mode in ("model", "hybrid"):
        return Part(outputs=turns[0].places)
    if mode == "data":
        return Part(inputs=turns[0].places)
    if mode == "rows+data":
        return Part(rows=turns[0].places)
    strips = [strip for turn in turns for strip in turn.gives if strip.value == last]
    if not strips:
        return Part(rows=(0, 0))
    return Part(rows=(min(s.first for s in strips), max(s.last for s in strips)))


def _check(graph: Graph, blocks: Sequence[Block], devices: Sequence[str]) -> None:
    if not devices or len(set(devices)) < len(devices):
        raise InputError(f"devices {', '.join(devices) or 'none'}: name at least one, each once")
    after = 0
    for block in blocks:
        first, last = block.layers
        if first != after or last < first:
            raise InputError(
                f"a block of layers {first + 1} to {last + 1} follows on layer {after}; blocks must "
                f"cover layers 1 to {len(graph.layers)} without gap"
            )
        after = last + 1
        shares = block.shares
        if shares and (len(shares) != len(devices) or min(shares) < 0 or not sum(shares)):
            raise InputError(
                f"shares {shares} of layers {first + 1} to {last + 1} for {len(devices)} devices: give "
                "one number for each, 0 or more"
            )
    if after != len(graph.layers):
        raise InputError(
            f"the blocks end at layer {after} of {len(graph.layers)}; add a block for the rest"
        )
