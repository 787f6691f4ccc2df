"""The eager order: list scheduling of the pieces' passes over the plan's devices and links.

A search schedules thousands of candidates, so passes have numbers here: the backward passes first, each by
piece, then by segment. All that pieces of one size on the same devices have in common is computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from heapq import heappop, heappush, heappushpop
from typing import NamedTuple

from weft.codecs.registry import coded_bytes
from weft.program.lower.actions import Action, Orders
from weft.program.lower.layout import Layout, Piece
from weft.program.lower.sends import codec_at

Way = tuple[tuple[str, str] | None, float, float]  # the ends of a link, seconds on it, latency
_NO_WAY: Way = None, 0.0, 0.0
_Ways = list[tuple[int, float, float] | None]


class _Kind(NamedTuple):
    """Pieces of one size on the same devices; every tuple has one entry for each segment."""

    devices: tuple[str, ...]
    forward: list[float]  # seconds of the passes
    backward: list[float]
    there: list[Way]  # of what a forward pass waits for
    back: list[Way]  # of what a backward pass waits for
    urgency: tuple[list[float], list[float]]  # of the backward passes, of the forward passes


class _Costs:
    """Seconds of passes and of the messages between them."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._ways: dict[tuple[str, str, int, int, bool], Way] = {}

    def kinds(self) -> list[_Kind]:
        """The kind of each piece."""
        known: dict[tuple[tuple[str, ...], str, int], _Kind] = {}
        kinds = []
        for piece in self.layout.pieces:
            key = piece.devices, piece.source, piece.samples
            if key not in known:
                known[key] = self.kind(piece)
            kinds.append(known[key])
        return kinds

    def kind(self, piece: Piece) -> _Kind:
        devices, samples, segments = piece.devices, piece.samples, self.layout.segments
        times = [self.layout.plan.profile.devices[device] for device in devices]
        passes = list(zip(times, segments, strict=True))
        forward = [each.forward(*layers, samples) for each, layers in passes]
        backward = [each.backward(*layers, samples) for each, layers in passes]
        before = (piece.source, *devices)
        there = [
            _NO_WAY if a == b else self.way(a, b, layers[0], samples, back=False)
            for a, b, layers in zip(before, devices, segments, strict=False)
        ]
        after = (*devices[1:], devices[-1])
        back = [
            _NO_WAY if a == b else self.way(a, b, layers[1] + 1, samples, back=True)
            for a, b, layers in zip(after, devices, segments, strict=True)
        ]
        return _Kind(
            devices, forward, backward, there, back, _urgency(forward, backward, there, back)
        )

    def way(self, a: str, b: str, at: int, samples: int, back: bool) -> Way:
        """The way of some samples' values that cross cut `at`."""
        key = a, b, at, samples, back
        if key not in self._ways:
            plan = self.layout.plan
            crossing = plan.profile.returned_bytes if back else plan.profile.activation_bytes
            size = coded_bytes(crossing(at, samples), codec_at(plan, at))
            rate = plan.fleet.path_rate(a, b, plan.route)
            self._ways[key] = (a, b), size / rate, plan.fleet.path_latency(a, b)
        return self._ways[key]


def eager(layout: Layout) -> Orders:
    """List scheduling: among the actions that are ready, the one with the longest time to the end comes
    first."""
    segments, half = len(layout.segments), len(layout.pieces) * len(layout.segments)
    actions = [
        Action(what, piece, g)
        for what in ("backward", "forward")
        for piece in range(half // segments)
        for g in range(segments)
    ]
    orders: Orders = {device: [] for device in layout.plan.devices}
    work, order = _scheduled(layout)
    for number in order:
        orders[work.names[work.who[number]]].append(actions[number])
    return orders


def last_backwards(
    layout: Layout, begins: Mapping[str, float], fed: Mapping[str, float]
) -> dict[tuple[str, int], float]:
    """When each device's last backward pass through each of its segments is over in the eager order, at
    least, if the links carry nothing but samples, activations and their gradients.

    `begins`: when a device begins, at least; others begin at 0. `fed`: when a source sends its samples; the
    samples of other sources are there at 0.
    """
    work, order = _scheduled(layout)
    half = len(work.who) // 2
    free, link = [begins.get(name, 0.0) for name in work.names], [0.0] * len(work.links)
    ready = [0.0] * (2 * half)
    for number, piece in zip(range(half, 2 * half, work.count), layout.pieces, strict=True):
        if piece.source in fed:
            ready[number] = work.arrival(number, fed[piece.source], link)
    ends: dict[tuple[str, int], float] = {}
    for number in order:
        device, begin = work.who[number], ready[number]
        if free[device] > begin:
            begin = free[device]
        end = free[device] = begin + work.seconds[number]
        following = work.following[number]
        if following >= 0:
            ready[following] = work.arrival(following, end, link)
        if number < half:
            ends[work.names[device], number % work.count] = end
    return ends


@lru_cache(maxsize=1)
def _scheduled(layout: Layout) -> tuple[_Work, list[int]]:
    """The passes, and their order. A search asks for a bound of a plan first, and then for its program."""
    work = _Work(layout)
    return work, _order(work)


class _Work:
    """All passes of a minibatch, by number: who computes a pass, for how long, and what it waits for."""

    def __init__(self, layout: Layout) -> None:
        kinds = _Costs(layout).kinds()
        self.names = list(layout.plan.devices)
        place = {name: number for number, name in enumerate(self.names)}
        self.links: dict[tuple[str, str], int] = {}
        self.count = count = len(layout.segments)
        half = len(kinds) * count
        self.who: list[int] = []
        self.seconds: list[float] = []
        self.urgent: list[tuple[float, int]] = []  # (-urgency, number)
        # (number of a link, seconds on it, latency) of what a pass waits for; None if it is on its device
        self.ways: list[tuple[int, float, float] | None] = []
        numbered: dict[int, tuple[list[int], list[float], list[float], _Ways, _Ways]] = {}
        for kind in kinds:
            if id(kind) not in numbered:
                numbered[id(kind)] = self.numbered(kind, place)
        for onward in (0, 1):
            for kind in kinds:
                who, late, early, back, there = numbered[id(kind)]
                begin = len(self.who)
                self.who += who
                self.seconds += kind.forward if onward else kind.backward
                self.urgent += zip(
                    early if onward else late, range(begin, begin + count), strict=True
                )
                self.ways += there if onward else back
        # The pass that comes after each: backward the segment before, or nothing; forward the next segment,
        # or backward through the last one.
        self.following = [*range(-1, half - 1), *range(half + 1, 2 * half + 1)]
        for piece in range(len(kinds)):
            self.following[piece * count] = -1
            end = piece * count + count - 1
            self.following[half + end] = end

    def numbered(
        self, kind: _Kind, place: dict[str, int]
    ) -> tuple[list[int], list[float], list[float], _Ways, _Ways]:
        """A kind's devices, urgencies and ways, with numbers in place of names."""
        ways: list[_Ways] = []
        for side in (kind.back, kind.there):
            ways.append([
                None if ends is None
                else (self.links.setdefault(ends, len(self.links)), seconds, latency)
                for ends, seconds, latency in side
            ])  # fmt: skip
        late, early = ([-seconds for seconds in each] for each in kind.urgency)
        return [place[device] for device in kind.devices], late, early, ways[0], ways[1]

    def arrival(self, number: int, now: float, link: list[float]) -> float:
        """When a pass can begin whose values are ready at `now`; each link carries one thing at a time."""
        way = self.ways[number]
        if way is None:
            return now
        through, seconds, latency = way
        left = link[through]
        left = link[through] = (now if now > left else left) + seconds
        return left + latency


def _order(work: _Work) -> list[int]:
    """The numbers of all passes in the order in which they begin."""
    who, seconds, urgent, following, ways = (
        work.who, work.seconds, work.urgent, work.following, work.ways,
    )  # fmt: skip
    total, half, count = len(who), len(who) // 2, work.count
    link = [0.0] * len(work.links)
    free = [0.0] * len(work.names)
    ready: list[list[tuple[float, int]]] = [[] for _ in work.names]
    order: list[int] = []
    # (time, order, event). An event below `total`: this pass becomes possible; below 2 * total: it becomes
    # possible and its device free, since both were with the pass before it; from there on: a device is free.
    events: list[tuple[float, int, int]] = []
    counter = 0
    for number in range(half, total, count):
        counter += 1
        heappush(events, (work.arrival(number, 0.0, link), counter, number))
    while events:
        now = events[0][0]
        touched: dict[int, None] = {}
        # First handle all events of this moment, then choose: a pass that has just become ready may be the
        # most urgent.
        while events and events[0][0] == now:
            event = heappop(events)[2]
            if event < 2 * total:
                number = event if event < total else event - total
                device = who[number]
                heappush(ready[device], urgent[number])
            else:
                device = event - 2 * total
            touched[device] = None
        last = next(reversed(touched))
        for device in touched:
            mine = ready[device]
            if free[device] > now or not mine:
                continue
            number = heappop(mine)[1]
            while True:
                order.append(number)
                end = free[device] = now + seconds[number]
                onward = following[number]
                if onward < 0 or ways[onward] is not None:
                    counter += 1
                    heappush(events, (end, counter, 2 * total + device))
                    if onward >= 0:
                        counter += 1
                        heappush(events, (work.arrival(onward, end, link), counter, onward))
                    break
                if device != last or (events and events[0][0] <= end):
                    counter += 1
                    heappush(events, (end, counter, total + onward))
                    break
                # Nothing happens before the next pass of this piece is possible here: no event is needed.
                now = end
                number = heappushpop(mine, urgent[onward])[1] if mine else onward
    return order


def _urgency(
    forward: list[float], backward: list[float], there: list[Way], back: list[Way]
) -> tuple[list[float], list[float]]:
    """Seconds from the start of each backward and of each forward pass until its piece is finished, with its
    own links."""
    left = 0.0
    backwards, forwards = [], []
    for g, seconds in enumerate(backward):
        if g:
            left += back[g - 1][1] + back[g - 1][2]
        left += seconds
        backwards.append(left)
    for g in reversed(range(len(forward))):
        if g + 1 < len(forward):
            left += there[g + 1][1] + there[g + 1][2]
        left += forward[g]
        forwards.append(left)
    return backwards, forwards[::-1]
