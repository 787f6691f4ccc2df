"""The eager order: list scheduling of the pieces' passes over the plan's devices and links.

A search schedules thousands of candidates, so passes have numbers here: the backward passes first, each by
piece, then by segment. All that pieces of one size on the same devices have in common is computed once.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import NamedTuple

from weft.codecs.registry import coded_bytes
from weft.program.lower.actions import Action, Orders
from weft.program.lower.layout import Layout, Piece
from weft.program.lower.sends import codec_at

_FREE = -1  # in place of a pass: the device becomes free

Way = tuple[tuple[str, str] | None, float, float]  # the ends of a link, seconds on it, latency
_NO_WAY: Way = None, 0.0, 0.0


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
    return {
        device: [actions[number] for number in numbers]
        for device, numbers in _schedule(layout)[0].items()
    }


def last_backwards(layout: Layout) -> dict[tuple[str, int], float]:
    """When each device's last backward pass through each of its segments is over in the eager order, if all
    devices begin at 0 and the links carry nothing but samples, activations and their gradients."""
    return _schedule(layout)[1]


def _schedule(layout: Layout) -> tuple[dict[str, list[int]], dict[tuple[str, int], float]]:
    """The numbers of the passes of each device in their order, and `last_backwards`."""
    kinds = _Costs(layout).kinds()
    count = len(layout.segments)
    half, last = len(kinds) * count, count - 1
    orders: dict[str, list[int]] = {device: [] for device in layout.plan.devices}
    ends: dict[tuple[str, int], float] = {}
    free: dict[str, float] = defaultdict(float)
    link: dict[tuple[str, str], float] = defaultdict(float)
    ready: dict[str, list[tuple[float, int]]] = defaultdict(list)  # (-urgency, pass)
    # (time, order, device, pass): a pass becomes possible, or the device becomes free
    events: list[tuple[float, int, str, int]] = []
    counter = 0

    def arrive(now: float, number: int, device: str, way: Way) -> None:
        nonlocal counter
        ends_of_link, seconds, latency = way
        if ends_of_link is not None:
            left = link[ends_of_link]
            sent = (now if now > left else left) + seconds
            link[ends_of_link] = sent
            now = sent + latency
        counter += 1
        heappush(events, (now, counter, device, number))

    for piece, kind in enumerate(kinds):
        arrive(0.0, half + piece * count, kind.devices[0], kind.there[0])
    while events:
        now = events[0][0]
        touched: dict[str, None] = {}
        # First handle all events of this moment, then choose: a pass that has just become ready may be the
        # most urgent.
        while events and events[0][0] == now:
            _, _, device, number = heappop(events)
            if number != _FREE:
                onward, place = divmod(number, half)
                piece, g = divmod(place, count)
                heappush(ready[device], (-kinds[piece].urgency[onward][g], number))
            touched[device] = None
        for device in touched:
            if free[device] > now or not ready[device]:
                continue
            _, number = heappop(ready[device])
            orders[device].append(number)
            onward, place = divmod(number, half)
            piece, g = divmod(place, count)
            kind = kinds[piece]
            end = now + (kind.forward[g] if onward else kind.backward[g])
            free[device] = end
            counter += 1
            heappush(events, (end, counter, device, _FREE))
            if onward and g < last:
                arrive(end, number + 1, kind.devices[g + 1], kind.there[g + 1])
            elif onward:
                arrive(end, number - half, device, kind.back[g])
            elif g:
                arrive(end, number - 1, kind.devices[g - 1], kind.back[g - 1])
            if not onward:
                ends[device, g] = end
    return orders, ends


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
