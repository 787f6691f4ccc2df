"""The turns of a block: its output is shared out among the devices, and the gateway does the rest.

turns = Turns(graph, (0, 3), "rows", ["r1", "r2"], "gw")
turns.of_devices((28, 28), None, 0.0)      # one Turn for each device, 28 rows each
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from weft.errors import InputError
from weft.graph.network import Graph, Node, refs
from weft.graph.operators.rows import Range
from weft.graph.split.divide import divide, is_constant, reads
from weft.graph.split.rows import places
from weft.graph.split.slices import bias_node, linear_width, sum_name, units_segment
from weft.plans.rounds import RoundMode, Strip, Turn
from weft.strategies.coopai.row_turns import Owned, Rows, row_turns, state_bytes, strip_of


class Block(Struct, frozen=True, gc=False):
    """Consecutive layers that are computed in one round.

    `shares` says how much of the output each device makes; empty means even shares. A device with a
    share of 0 has no turn in this round. In mode "whole" the first device with a share computes all.
    """

    layers: tuple[int, int]
    mode: RoundMode
    shares: tuple[int, ...] = ()  # rows (or units) of each device; their sum is the whole output


def even(places: int, count: int) -> list[Range]:
    """Even ranges; the last ones are one larger if `places` cannot be divided evenly."""
    size, larger = divmod(places, count)
    ends = [n * size + max(n - (count - larger), 0) for n in range(count + 1)]
    return list(pairwise(ends))


def proportional(places: int, shares: Sequence[int]) -> list[Range]:
    """Ranges in proportion to the shares; exactly the shares if their sum is `places`."""
    total, done, ends = sum(shares), 0, [0]
    for share in shares:
        done += share
        ends.append((2 * done * places + total) // (2 * total))  # rounded
    return list(pairwise(ends))


class Turns:
    """The turns of blocks with the same layers and mode, for any shares of their output."""

    def __init__(
        self,
        graph: Graph,
        layers: tuple[int, int],
        mode: RoundMode,
        devices: Sequence[str],
        gateway: str,
    ) -> None:
        self.graph, self.span, self.mode = graph, layers, mode
        self.made = made = divide(graph, layers, mode)
        self.devices, self.gateway = devices, gateway
        self.crossing = set(graph.cuts[layers[1] + 1])
        self.layers = graph.layers[layers[0] : layers[1] + 1]
        self.reads = reads(graph, made.own)
        self.before, self.after = self._before(), self._after()
        if mode == "rows":
            self._job = Rows(graph, self.layers, made)
        elif made.flat is not None:
            rows_only = made._replace(own=made.own[: made.own.index(made.flat)])
            self._job = Rows(graph, self.layers[:-1], rows_only)

    def of_devices(
        self, shares: tuple[int, ...], owned: Owned | None, halves: float
    ) -> tuple[Turn, ...]:
        """The turns of all devices.

        `owned` says which rows each device already has. With it, a device first computes the rows for which
        it needs nothing else. `halves`: see `slicing.rounds_of`.
        """
        if self.mode == "rows":
            return self._rows(shares, owned, halves)
        if self.mode == "rows+data":
            return self._rows_and_data(shares)
        return self._whole(shares) if self.mode == "whole" else self._units(shares)

    def _before(self) -> Turn | None:
        nodes = self.made.before
        if not nodes:
            return None
        return self._gateway_turn(nodes, reads(self.graph, nodes), self.made.own, self.made.after)

    def _after(self) -> Turn | None:
        nodes, linear = self.made.after, self.made.data
        if linear is None and not nodes:
            return None
        read = reads(self.graph, nodes)
        if linear is not None:
            nodes = (bias_node(linear), *nodes)
            read = [sum_name(linear), *(name for name in read if name != linear.name)]
        return self._gateway_turn(nodes, read)

    def _rows(
        self, shares: tuple[int, ...], owned: Owned | None, halves: float
    ) -> tuple[Turn, ...]:
        outputs = self._given(self.made.own, self.made.after)
        split = {name: self._split(places(self.graph, name), shares) for name in outputs}
        turns: list[Turn] = []
        for place, device in enumerate(self.devices):
            wanted = {name: ranges[place] for name, ranges in split.items()}
            wanted = {name: rows for name, rows in wanted.items() if rows[0] < rows[1]}
            if wanted:
                # The gateway computes after it has handed out. By then it has everything it needs.
                own = None if owned is None or device == self.gateway else owned[device]
                turns += row_turns(self._job, device, wanted, own, halves)
        return tuple(turns)

    def _rows_and_data(self, shares: tuple[int, ...]) -> tuple[Turn, ...]:
        flat, linear = self.made.flat, self.made.data
        assert flat is not None
        assert linear is not None
        source = refs(flat)[0]
        outputs = linear_width(self.graph, linear)[0]
        height = places(self.graph, source)
        row_bytes = self.graph.state[refs(linear)[1]].bytes // height
        turns = []
        for device, rows in zip(self.devices, self._split(height, shares), strict=True):
            if rows[0] == rows[1]:
                continue
            count = rows[1] - rows[0]
            turn = self._job.turn(device, {source: rows})
            gives = (self._strip(sum_name(linear), (0, outputs)),)
            size = turn.state_bytes + row_bytes * count
            work = (*turn.work, count / height)
            turns.append(Turn(device, turn.takes, gives, work, size, rows))
        return tuple(turns)

    def _whole(self, shares: tuple[int, ...]) -> tuple[Turn, ...]:
        device = self.devices[next(n for n, share in enumerate(shares or (1,)) if share)]
        takes = tuple(self._strip(name) for name in self.reads)
        gives = tuple(self._strip(name) for name in self._given(self.made.own))
        work = (1.0,) * len(self.layers)
        return (Turn(device, takes, gives, work, state_bytes(self.graph, self.made.own)),)

    def _units(self, shares: tuple[int, ...]) -> tuple[Turn, ...]:
        """Fully connected layers by outputs, by inputs, or by outputs that are the next layer's inputs."""
        graph, model, data = self.graph, self.made.model, self.made.data
        first = model or data
        assert first is not None
        width = linear_width(graph, first)[0 if model else 1]
        output_names = self._given(self.made.own, self.made.after)
        source = refs(first)[0]
        turns = []
        for device, units in zip(self.devices, self._split(width, shares), strict=True):
            if units[0] == units[1]:
                continue
            takes = tuple(
                self._strip(name) if model and name == source else self._strip(name, units)
                for name in self.reads
            )
            gives = (
                (self._strip(sum_name(data)),)
                if data
                else tuple(self._strip(name, units) for name in output_names)
            )
            segment = units_segment(graph, self.span, 0, self.made, {}, {}, units)
            size = sum(state.bytes for state in segment.state.values())
            work = ((units[1] - units[0]) / width,) * len(self.layers)
            turns.append(Turn(device, takes, gives, work, size, units))
        return tuple(turns)

    def _strip(self, name: str, places: Range | None = None) -> Strip:
        """A strip of a value: these places, or all of it."""
        return strip_of(self.graph, name, places)

    def _gateway_turn(
        self, nodes: Sequence[Node], read: Sequence[str], *readers: Sequence[Node]
    ) -> Turn:
        takes = tuple(self._strip(name) for name in read)
        gives = tuple(self._strip(name) for name in self._given(nodes, *readers))
        return Turn(
            self.gateway, takes, gives, (0.0,) * len(self.layers), state_bytes(self.graph, nodes)
        )

    def _given(self, nodes: Iterable[Node], *readers: Sequence[Node]) -> list[str]:
        """The nodes' values that are needed later: by `readers` in this round, or by later layers."""
        wanted = self.crossing.union(*(reads(self.graph, part) for part in readers))
        return [
            node.name
            for node in nodes
            if node.name in wanted and not is_constant(self.graph, node.name)
        ]

    def _split(self, places: int, shares: tuple[int, ...]) -> list[Range]:
        if shares:
            return proportional(places, shares)
        count = len(self.devices)
        if count > places:
            kind = "outputs" if self.made.model else "rows" if self.made.rules else "inputs"
            raise InputError(
                f"{count} devices for {places} {kind} of layer {self.layers[-1].name}: use at most "
                f"{places}"
            )
        return even(places, count)
