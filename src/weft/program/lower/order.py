"""In which order a device computes the pieces of a plan with lanes.

staged   as HierTrain draws it: segment by segment, all pieces forward, then all backward
eager    whatever is ready, the longest way to the end first: nobody waits while there is work

Both are static: the order is decided here, from the profile and the links, and then is data.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from weft.codecs.registry import coded_bytes
from weft.program.lower.lanes import Lanes


class Turn(NamedTuple):
    """One computation: a piece through a segment, forward (the loss included) or backward."""

    what: Literal["forward", "backward"]
    piece: int
    segment: int


Orders = dict[str, list[Turn]]


def orders(lanes: Lanes) -> Orders:
    return eager(lanes) if lanes.plan.schedule == "eager" else staged(lanes)


def staged(lanes: Lanes) -> Orders:
    """Own pieces first on the way forward, others' first on the way back: they have links to cross."""
    found: Orders = defaultdict(list)
    count = len(lanes.segments)
    for g in range(count):
        for piece in sorted(lanes.pieces, key=lambda p: _visits(p.way, g)):
            found[piece.way[g]].append(Turn("forward", piece.micro, g))
    for g in reversed(range(count)):
        for piece in sorted(lanes.pieces, key=lambda p: -_visits(p.way, g)):
            found[piece.way[g]].append(Turn("backward", piece.micro, g))
    return dict(found)


def _visits(way: tuple[str, ...], g: int) -> int:
    """How many other devices had this piece before segment g."""
    return len({d for d in way[:g] if d != way[g]})


class _Costs:
    """Seconds of turns and of what crosses between them."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, plan = lanes, lanes.plan
        self.rate = {
            (a, b): plan.fleet.path_rate(a, b, plan.route)
            for a in plan.devices for b in plan.devices if plan.fleet.connected(a, b)
        }  # fmt: skip
        self.latency = {pair: plan.fleet.path_latency(*pair) for pair in self.rate}

    def turn(self, turn: Turn) -> float:
        piece = self.lanes.pieces[turn.piece]
        times = self.lanes.plan.profile.devices[piece.way[turn.segment]]
        seconds = times.forward if turn.what == "forward" else times.backward
        return seconds(*self.lanes.segments[turn.segment], piece.samples)

    def crossing(self, piece: int, a: str, b: str, at: int, back: bool) -> tuple[float, float]:
        """(seconds that it takes the way, latency) of a piece's values over cut `at`."""
        if a == b:
            return 0.0, 0.0
        plan = self.lanes.plan
        raw = plan.profile.gradient_bytes(at) if back else plan.profile.cut_bytes(at)
        codec = plan.codec if at else plan.input_codec
        size = coded_bytes(raw * self.lanes.pieces[piece].samples, codec)
        return size / self.rate[a, b], self.latency[a, b]


def eager(lanes: Lanes) -> Orders:
    """List scheduling: of the turns that are ready, the one with the longest way to the end."""
    costs = _Costs(lanes)
    urgency = _urgency(lanes, costs)
    last = len(lanes.segments) - 1
    found: Orders = {device: [] for device in lanes.plan.devices}
    free: dict[str, float] = defaultdict(float)
    link: dict[tuple[str, str], float] = defaultdict(float)
    ready: dict[str, list[tuple[float, Turn]]] = defaultdict(list)  # (-urgency, turn)
    # (time, order, device, turn): a turn becomes possible, or (None) the device has become free
    events: list[tuple[float, int, str, Turn | None]] = []
    counter = 0

    def arrive(now: float, turn: Turn, origin: str, at: int) -> None:
        nonlocal counter
        piece = lanes.pieces[turn.piece]
        device = piece.way[turn.segment]
        seconds, latency = costs.crossing(turn.piece, origin, device, at, turn.what == "backward")
        if origin != device:
            start = max(now, link[origin, device])
            link[origin, device] = start + seconds
            now = start + seconds + latency
        counter += 1
        heappush(events, (now, counter, device, turn))

    for piece in lanes.pieces:
        arrive(0.0, Turn("forward", piece.micro, 0), lanes.plan.source, 0)
    while events:
        now = events[0][0]
        touched: dict[str, None] = {}
        # All that happens at this moment, then the choices: what a device has just made may be
        # the most urgent of its turns.
        while events and events[0][0] == now:
            _, _, device, new = heappop(events)
            if new is not None:
                heappush(ready[device], (-urgency[new], new))
            touched[device] = None
        for device in touched:
            if free[device] > now or not ready[device]:
                continue
            _, turn = heappop(ready[device])
            found[device].append(turn)
            end = now + costs.turn(turn)
            free[device] = end
            counter += 1
            heappush(events, (end, counter, device, None))
            first_layer, last_layer = lanes.segments[turn.segment]
            if turn.what == "forward" and turn.segment < last:
                arrive(end, Turn("forward", turn.piece, turn.segment + 1), device, last_layer + 1)
            elif turn.what == "forward":
                arrive(end, Turn("backward", turn.piece, turn.segment), device, last_layer + 1)
            elif turn.segment > 0:
                arrive(end, Turn("backward", turn.piece, turn.segment - 1), device, first_layer)
    return found


def _urgency(lanes: Lanes, costs: _Costs) -> dict[Turn, float]:
    """Seconds from a turn's start to the end of its piece's way, its own links included."""
    found: dict[Turn, float] = {}
    for piece in lanes.pieces:
        left = 0.0
        for g in range(len(lanes.segments)):
            turn = Turn("backward", piece.micro, g)
            if g:
                left += sum(costs.crossing(piece.micro, piece.way[g], piece.way[g - 1],
                                           lanes.segments[g][0], True))  # fmt: skip
            left += costs.turn(turn)
            found[turn] = left
        for g in reversed(range(len(lanes.segments))):
            turn = Turn("forward", piece.micro, g)
            if g + 1 < len(lanes.segments):
                left += sum(costs.crossing(piece.micro, piece.way[g], piece.way[g + 1],
                                           lanes.segments[g][1] + 1, False))  # fmt: skip
            left += costs.turn(turn)
            found[turn] = left
    return found
