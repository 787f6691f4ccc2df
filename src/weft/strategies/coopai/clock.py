"""The time of rounds on one medium, as the simulator counts it, without a plan or a program.

    clock = RoundClock(task, devices, samples=1, frames=1)
    clock.seconds(Candidate(3, blocks, overlap))      # the same as price(plan), but faster

A round's exchange is what is sent up and down before it and what its turns then compute. It depends only
on who holds which rows and on the block. Both are small tuples, so each exchange is computed once. If a
candidate differs in one block, only one or two exchanges are new. Then events are processed in the order
of time, as in weft.simulate: a device does one thing after the other, and the medium carries one message
after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from weft.codecs.registry import coded_bytes
from weft.graph.operators.rows import Range
from weft.graph.split.rows import places
from weft.graph.split.slices import sum_name
from weft.plans import options
from weft.plans.rounds import Round, Strip, frame_order
from weft.plans.task import Task
from weft.strategies.coopai.clock_events import COMPUTE, RECV, SEND, Code, Line, Part, finish
from weft.strategies.coopai.row_turns import Owned, strip_of
from weft.strategies.coopai.slicing import Block, Slicer


class Candidate(NamedTuple):
    """All decisions of a plan with rounds."""

    devices: int
    blocks: tuple[Block, ...]
    overlap: tuple[bool, ...]  # by block: whether inner rows are computed first
    in_flight: int = 1
    halves: float = 0.0
    gateway: bool = False  # whether the gateway computes too


# What each device holds of every value (the gateway is the last device): first the range that the device
# made (possibly empty), then the ranges that it got from others.
Held = tuple[tuple[str, tuple[tuple[Range, ...], ...]], ...]
NOTHING: tuple[Range, ...] = ((0, 0),)


class Exchange(NamedTuple):
    """What happens between two rounds, and in the second round."""

    up: Code  # devices send up what others lack
    down: tuple[Line, ...]  # the gateway receives it and sends it out
    turns: Code  # the turns of the devices, then of the gateway
    held: Held  # what each device holds afterwards


class RoundClock:
    """The clock for these devices; the gateway may be one of them. `samples` are computed at once, as one
    of `frames`."""

    def __init__(self, task: Task, devices: Sequence[str], samples: int, frames: int) -> None:
        assert task.graph is not None
        self.graph, self.devices, self.frames = task.graph, tuple(devices), frames
        self.samples = samples
        self.byte_s, self.latency_s = 0.0, 0.0
        for other in [device for device in devices if device != task.source][:1]:
            hop = task.fleet.route(task.source, other)[0]
            self.byte_s, self.latency_s = 1 / hop.bytes_per_s, hop.latency_s
        self.codec, self.input_codec = options.codec(task), options.input_codec(task)
        layers = range(len(task.profile.layers))
        times = [task.profile.devices[device] for device in (*devices, task.source)]
        self.layer_s = [[t.forward(m, m, samples) for m in layers] for t in times]
        self.slicer = Slicer(self.graph, self.devices, task.source)
        # A gateway that computes keeps its results in its place as gateway, which is the last place.
        self.place = {name: d for d, name in enumerate((*devices, task.source))}
        self.members = [d for d, name in enumerate(devices) if name != task.source]
        self._found: dict[object, Exchange] = {}

    def seconds(self, candidate: Candidate) -> float:
        """Seconds until all frames are done."""
        order = self._order(candidate)
        exchanges = list(self._exchanges(candidate, order))
        rounds, k = len(candidate.blocks), len(self.devices)
        width = 5 * k  # messages of an exchange: up from each device, down for each turn
        code: list[list[Part]] = [[] for _ in range(k + 1)]
        for frame, n in frame_order(self.frames, rounds, candidate.in_flight):
            base = (frame * (rounds + 1) + n + 1) * width
            for d in order:
                if n >= 0:
                    code[d].append((base - width, exchanges[n].turns[d]))
                code[d].append((base, exchanges[n + 1].up[d]))
            if n >= 0 and exchanges[n].turns[k]:
                code[k].append((base - width, exchanges[n].turns[k]))
            code[k].append((base, exchanges[n + 1].down))
        return finish([code[d] for d in (k, *order)], self.latency_s)

    def _order(self, candidate: Candidate) -> tuple[int, ...]:
        """The devices in the order in which the plan names them: by their first turn."""
        users_so_far: dict[int, None] = {}
        everyone = range(len(self.devices))
        for block in candidate.blocks:
            users = [d for d in everyone if block.shares[d]] if block.shares else everyone
            users_so_far |= dict.fromkeys(users[:1] if block.mode == "whole" else users)
        return tuple(d for d in users_so_far if d in self.members)

    def _exchanges(self, candidate: Candidate, order: tuple[int, ...]) -> Iterator[Exchange]:
        """The exchange before every round, and the last one, which collects the answer."""
        held = self._input()
        done: Block | None = None
        for block, inner in zip(
            (*candidate.blocks, None), (*candidate.overlap, False), strict=True
        ):
            last = done and (done.layers, done.mode)
            key = (held, last, block, inner, candidate.halves if inner else 0.0, order)
            if key not in self._found:
                self._found[key] = _Exchanging(self, held, done, order).before(
                    block, inner, candidate.halves
                )
            yield self._found[key]
            held, done = self._found[key].held, block

    def _input(self) -> Held:
        nobody = (NOTHING,) * len(self.devices)
        return tuple(
            (name, (*nobody, (*NOTHING, (0, places(self.graph, name)))))
            for name in self.graph.cuts[0]
        )


class _Exchanging:
    """One exchange. What each device holds changes as messages are sent up and down."""

    def __init__(
        self, clock: RoundClock, held: Held, done: Block | None, order: tuple[int, ...]
    ) -> None:
        self.clock, self.done, self.order = clock, done, order
        self.k = len(clock.devices)
        self.held = {name: list(holders) for name, holders in held}
        made = clock.slicer.turns(done.layers, done.mode) if done else None
        self.after = made.after if made else None
        self.sum = sum_name(made.made.data) if made and made.made.data else None

    def before(self, block: Block | None, inner: bool, halves: float) -> Exchange:
        """The exchange before a block; None is the end, where the gateway collects the answer."""
        following = None
        if block is not None:
            following = self.clock.slicer.round(block, self.owned() if inner else None, halves)
        sent = self.gathered(following)
        up: Code = [()] * self.k
        for d, pieces in sent:
            up[d] = ((SEND, self.on_air(pieces, first=False), d),)
        down: list[Line] = []
        waiting = [d for d, _ in sent]
        before = following.before if following else None
        if self.after or before or following is None:  # the gateway needs all of them
            down += [(RECV, 0.0, d) for d in waiting]
            waiting = []
        for turn in (self.after, before):
            for strip in turn.gives if turn else ():
                self.add(strip.value, self.k, (strip.first, strip.last))
        turns: Code = [()] * (self.k + 1)
        if following is not None:
            self.hand_out(following, sent, waiting, down, turns)
        down += [(RECV, 0.0, d) for d in waiting]
        return Exchange(up, tuple(down), turns, self.rest(following))

    def owned(self) -> Owned:
        """The rows of each value that each device made itself."""
        return {
            device: {n: held[d][0] for n, held in self.held.items() if held[d][0][1]}
            for d, device in enumerate(self.clock.devices)
        }

    def gathered(self, following: Round | None) -> list[tuple[int, list[Strip]]]:
        """What each device sends up, in the order in which the gateway receives it."""
        if self.done is None:
            return []
        if self.sum:
            whole, holders = strip_of(self.clock.graph, self.sum), self.held[self.sum]
            return [(d, [whole]) for d in range(self.k) if holders[d] != NOTHING]
        wanted = self.wanted(following)
        sent = []
        for d in self.order:
            pieces = [
                Strip(s.value, first, last, s.bytes, s.dim)
                for s, gaps in wanted.items()
                for first, last in _meet(self.held[s.value][d], gaps)
            ]
            if pieces:
                sent.append((d, pieces))
        for _, pieces in sent:
            for strip in pieces:
                self.add(strip.value, self.k, (strip.first, strip.last))
        return sent

    def wanted(self, following: Round | None) -> dict[Strip, list[Range]]:
        """By value (a strip of no places): the places that somebody lacks and the gateway does not have."""
        asks: list[tuple[int, Strip]] = []
        for turn in (self.after, following.before if following else None):
            asks += [(self.k, strip) for strip in turn.takes] if turn else []
        if following is None and self.after is None:
            asks += [(self.k, strip_of(self.clock.graph, name)) for name in self.held]
        for turn in following.turns if following else ():
            asks += [(self.clock.place[turn.device], strip) for strip in turn.takes]
        lacks: dict[Strip, list[Range]] = {}
        for holder, s in asks:
            if s.value not in self.held:
                continue  # the gateway makes it from what it gets now
            gaps = _minus([(s.first, s.last)], self.held[s.value][holder])
            like = Strip(s.value, 0, 0, s.bytes, s.dim)
            lacks[like] = lacks.get(like, []) + gaps
        return {s: _minus(_merged(gaps), self.held[s.value][self.k]) for s, gaps in lacks.items()}

    def hand_out(
        self, following: Round, sent: list[tuple[int, list[Strip]]], waiting: list[int],
        down: list[Line], turns: Code,
    ) -> None:  # fmt: skip
        """The gateway sends to every turn what its device lacks, as soon as it has received that."""
        layer = following.layers[0]
        for number, turn in enumerate(following.turns, start=self.k):
            d = self.clock.place[turn.device]
            lacks = [
                Strip(s.value, first, last, s.bytes, s.dim)
                for s in turn.takes
                for first, last in _minus([(s.first, s.last)], self.held[s.value][d])
            ]
            if lacks:
                from_whom = {other for other, pieces in sent if _overlap(pieces, lacks)}
                while from_whom.intersection(waiting):
                    down.append((RECV, 0.0, waiting.pop(0)))
                down.append((SEND, self.on_air(lacks, first=layer == 0), number))
                turns[d] += ((RECV, 0.0, number),)
                for strip in lacks:
                    self.add(strip.value, d, (strip.first, strip.last))
            spent = self.clock.layer_s[d][layer:]
            work = sum(part * s for part, s in zip(turn.work, spent, strict=False))
            turns[d] += ((COMPUTE, work, 0),)

    def on_air(self, strips: list[Strip], first: bool) -> float:
        """Seconds on the medium. Each value is coded separately."""
        clock = self.clock
        sizes: dict[str, int] = {}
        for strip in strips:
            sizes[strip.value] = sizes.get(strip.value, 0) + strip.size * clock.samples
        codec = clock.input_codec if first else clock.codec
        return sum(coded_bytes(size, codec) for size in sizes.values()) * clock.byte_s

    def add(self, name: str, holder: int, places: Range) -> None:
        """Note that a device received places of a value, or that the gateway made them."""
        holders = self.held.setdefault(name, [NOTHING] * (self.k + 1))
        holders[holder] = (*holders[holder], places)

    def rest(self, following: Round | None) -> Held:
        """What each device holds after the round, as far as it is needed later."""
        if following is None:
            return ()
        for turn in following.turns:
            d = self.clock.place[turn.device]
            for strip in turn.gives:
                holders = self.held.setdefault(strip.value, [NOTHING] * (self.k + 1))
                (first, last), *received = holders[d]
                own = (min(first, strip.first) if last else strip.first, max(last, strip.last))
                holders[d] = (own, *received)
        after = [strip.value for strip in following.after.takes] if following.after else []
        needed = dict.fromkeys([*self.clock.graph.cuts[following.layers[1] + 1], *after])
        return tuple((name, tuple(self.held[name])) for name in needed if name in self.held)


def _overlap(some: Sequence[Strip], others: Sequence[Strip]) -> bool:
    return any(
        a.value == b.value and a.first < b.last and b.first < a.last for a in some for b in others
    )


def _merged(ranges: Iterable[Range]) -> list[Range]:
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def _meet(ranges: Iterable[Range], others: Sequence[Range]) -> list[Range]:
    pairs = ((max(a, c), min(b, d)) for a, b in ranges for c, d in others)
    return _merged((first, last) for first, last in pairs if first < last)


def _minus(ranges: list[Range], holes: Iterable[Range]) -> list[Range]:
    for first, last in holes:
        ranges = [
            part
            for a, b in ranges
            for part in ((a, min(b, first)), (max(a, last), b))
            if part[0] < part[1]
        ] if first < last else ranges  # fmt: skip
    return ranges
