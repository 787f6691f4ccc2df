"""From blocks of layers and each device's share to the rounds of a plan.

    rounds = rounds_of(graph, [Block((0, 3), "rows"), Block((4, 4), "model")], devices, gateway)
    segment = turn_segment(graph, rounds[0], 2)      # what the first device runs in the first round

`graph` has its layers in sequence (weft.graph.sequence). Every value that a block makes and somebody
later needs is shared out evenly, or in proportion to the block's shares; what a device takes follows
from that. A value that passes a round untouched is no matter of that round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from weft.errors import InputError
from weft.graph.divide import Division, divide, is_constant, reads
from weft.graph.network import Graph, Node, Segment, refs
from weft.graph.rows import Range
from weft.graph.slices import (
    after_sum_segment,
    linear_width,
    plain_segment,
    rows_and_data_segment,
    rows_segment,
    sum_name,
    units_segment,
    value_of,
)
from weft.plan.plan import Part, Shard
from weft.plan.rounds import Round, RoundMode, Strip, Turn
from weft.plan.turns import Owned, Rows, row_turns, state_bytes, strip_of


class Block(Struct, frozen=True):
    """Consecutive layers of one round. `shares`: of its output, per device; empty: even.

    A device with a share of 0 has no turn in this round. In mode whole the first device that has
    a share does it all.
    """

    layers: tuple[int, int]
    mode: RoundMode
    shares: tuple[int, ...] = ()  # rows (or units) of each device; they add up to the whole


def rounds_of(
    graph: Graph,
    blocks: Sequence[Block],
    devices: Sequence[str],
    gateway: str,
    overlap: bool = False,
    halves: float = 0.0,
) -> tuple[Round, ...]:
    """The rounds in which `devices` compute the blocks through the gateway.

    `overlap`: a device first computes the rows for which it has everything, then the others. In
    the first round nobody has anything: there the upper half goes before the lower one, if that
    adds no more than the part `halves` to the computation (0: never).
    """
    _check(graph, blocks, devices)
    owned: Owned = {device: {} for device in devices}
    rounds = []
    for block in blocks:
        made = divide(graph, block.layers, block.mode)
        maker = _Maker(graph, block, made, devices, gateway)
        if block.mode == "rows":
            turns = maker.rows(owned, overlap, halves)
        elif block.mode == "rows+data":
            turns = maker.rows_and_data()
        elif block.mode == "whole":
            turns = maker.whole()
        else:
            turns = maker.units()
        for turn in turns:
            for strip in turn.gives if made.data is None else ():
                own = owned[turn.device].get(strip.value, (strip.first, strip.last))
                both = (min(own[0], strip.first), max(own[1], strip.last))
                owned[turn.device][strip.value] = both
        before, after = maker.before(), maker.after()
        sums = made.data is not None
        rounds.append(Round(block.layers, block.mode, turns, before, after, sums))
    return tuple(rounds)


def even(places: int, count: int) -> list[Range]:
    """An even split; what remains goes to the last ones."""
    size, more = divmod(places, count)
    ends = [n * size + max(n - (count - more), 0) for n in range(count + 1)]
    return list(pairwise(ends))


def proportional(places: int, shares: Sequence[int]) -> list[Range]:
    """A split in proportion to the shares; exactly them where they add up to `places`."""
    total, done, ends = sum(shares), 0, [0]
    for share in shares:
        done += share
        ends.append((2 * done * places + total) // (2 * total))  # rounded
    return list(pairwise(ends))


def shards_of(rounds: Iterable[Round]) -> tuple[Shard, ...]:
    """What each device computes, for the plan: one shard per device and round."""
    shards = []
    for each in rounds:
        devices = dict.fromkeys(turn.device for turn in each.turns)
        last = max((turn.gives for turn in each.turns), key=len)[-1].value
        for device in devices:
            turns = [turn for turn in each.turns if turn.device == device]
            part = Part() if len(devices) == 1 else _part(each.mode, turns, last)
            shards.append(Shard(device, each.layers, part))
    return tuple(shards)


def turn_segment(graph: Graph, each: Round, number: int) -> Segment:
    """What a turn runs; `number` as in `Round.numbered`."""
    made = divide(graph, each.layers, each.mode)
    turn = each.numbered[number]
    takes, gives = (
        {strip.value: (strip.first, strip.last) for strip in strips}
        for strips in (turn.takes, turn.gives)
    )
    where = (graph, each.layers, number)
    if number == 1:
        return plain_segment(*where, made.before, takes, gives)
    if number == len(each.turns) + 2:
        if each.sums:
            return after_sum_segment(*where, made, gives)
        return plain_segment(*where, made.after, takes, gives)
    if each.mode == "whole":
        return plain_segment(*where, made.own, takes, gives)
    if each.mode == "rows":
        return rows_segment(*where, made, takes, gives)
    if each.mode == "rows+data":
        return rows_and_data_segment(*where, made, takes, turn.places)
    return units_segment(*where, made, takes, gives, turn.places)


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


class _Maker:
    """The turns of one block."""

    def __init__(
        self, graph: Graph, block: Block, made: Division, devices: Sequence[str], gateway: str
    ) -> None:
        self.graph, self.block, self.made = graph, block, made
        self.devices, self.gateway = devices, gateway
        self.crossing = set(graph.cuts[block.layers[1] + 1])
        self.layers = graph.layers[block.layers[0] : block.layers[1] + 1]

    def rows(self, owned: Owned, overlap: bool, halves: float) -> tuple[Turn, ...]:
        given = self._given(self.made.own, self.made.after)
        split = {name: self._split(value_of(self.graph, name).shape[2]) for name in given}
        job = Rows(self.graph, self.layers, self.made)
        turns: list[Turn] = []
        for place, device in enumerate(self.devices):
            wanted = {name: ranges[place] for name, ranges in split.items()}
            wanted = {name: rows for name, rows in wanted.items() if rows[0] < rows[1]}
            if wanted:
                turns += row_turns(job, device, wanted, owned[device] if overlap else None, halves)
        return tuple(turns)

    def rows_and_data(self) -> tuple[Turn, ...]:
        flat, linear = self.made.flat, self.made.data
        assert flat is not None
        assert linear is not None
        source = refs(flat)[0]
        outputs, inputs = linear_width(self.graph, linear)
        height = self.graph.values[source].shape[2]
        rows_only = self.made._replace(own=self.made.own[: self.made.own.index(flat)])
        job = Rows(self.graph, self.layers[:-1], rows_only)
        weight = inputs // height * outputs * 4
        turns = []
        for device, rows in zip(self.devices, self._split(height), strict=True):
            if rows[0] == rows[1]:
                continue
            count = rows[1] - rows[0]
            turn = job.turn(device, {source: rows})
            gives = (self.strip(sum_name(linear), (0, outputs)),)
            size = turn.state_bytes + weight * count
            work = (*turn.work, count / height)
            turns.append(Turn(device, turn.takes, gives, work, size, rows))
        return tuple(turns)

    def whole(self) -> tuple[Turn, ...]:
        shares = self.block.shares or (1,)
        device = self.devices[next(n for n, share in enumerate(shares) if share)]
        takes = tuple(self.strip(name) for name in reads(self.graph, self.made.own))
        gives = tuple(self.strip(name) for name in self._given(self.made.own))
        work = (1.0,) * len(self.layers)
        return (Turn(device, takes, gives, work, state_bytes(self.graph, self.made.own)),)

    def units(self) -> tuple[Turn, ...]:
        """Fully connected layers: some outputs, some inputs, or outputs that are inputs at once."""
        graph, model, data = self.graph, self.made.model, self.made.data
        first = model or data
        assert first is not None
        width = linear_width(graph, first)[0 if model else 1]
        given = self._given(self.made.own, self.made.after)
        source = refs(first)[0]
        turns = []
        for device, units in zip(self.devices, self._split(width), strict=True):
            if units[0] == units[1]:
                continue
            takes = tuple(
                self.strip(name) if model and name == source else self.strip(name, units)
                for name in reads(graph, self.made.own)
            )
            gives = (
                (self.strip(sum_name(data)),)
                if data
                else tuple(self.strip(name, units) for name in given)
            )
            segment = units_segment(graph, self.block.layers, 0, self.made, {}, {}, units)
            size = sum(state.bytes for state in segment.state.values())
            work = ((units[1] - units[0]) / width,) * len(self.layers)
            turns.append(Turn(device, takes, gives, work, size, units))
        return tuple(turns)

    def before(self) -> Turn | None:
        nodes = self.made.before
        if not nodes:
            return None
        return self._gateway_turn(nodes, reads(self.graph, nodes), self.made.own, self.made.after)

    def after(self) -> Turn | None:
        nodes, linear = self.made.after, self.made.data
        if linear is None and not nodes:
            return None
        read = reads(self.graph, nodes)
        if linear is not None:
            read = [sum_name(linear), *(name for name in read if name != linear.name)]
            nodes = (linear, *nodes)
        return self._gateway_turn(nodes, read)

    def strip(self, name: str, places: Range | None = None) -> Strip:
        """Of a value; all of it unless told otherwise."""
        return strip_of(self.graph, name, places)

    def _gateway_turn(
        self, nodes: Sequence[Node], read: Sequence[str], *readers: Sequence[Node]
    ) -> Turn:
        takes = tuple(self.strip(name) for name in read)
        gives = tuple(self.strip(name) for name in self._given(nodes, *readers))
        return Turn(
            self.gateway, takes, gives, (0.0,) * len(self.layers), state_bytes(self.graph, nodes)
        )

    def _given(self, nodes: Iterable[Node], *readers: Sequence[Node]) -> list[str]:
        """Which of their values somebody needs: these nodes of the round, or later layers."""
        wanted = self.crossing.union(*(reads(self.graph, part) for part in readers))
        return [
            node.name
            for node in nodes
            if node.name in wanted and not is_constant(self.graph, node.name)
        ]

    def _split(self, places: int) -> list[Range]:
        if self.block.shares:
            return proportional(places, self.block.shares)
        count = len(self.devices)
        if count > places:
            kind = "outputs" if self.made.model else "rows" if self.made.rules else "inputs"
            raise InputError(
                f"{count} devices for {places} {kind} of layer {self.layers[-1].name}: use at most "
                f"{places}"
            )
        return even(places, count)
