"""The eager order: list scheduling of the pieces' passes over the plan's devices and links."""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush

from weft.codecs.registry import coded_bytes
from weft.program.lower.actions import Action, Orders
from weft.program.lower.layout import Layout
from weft.program.lower.sends import codec_at

_NO_WAY = 0.0, 0.0


class _Costs:
    """Seconds of passes and of the messages between them."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        # Most pieces have the same size, so most passes and messages are known already.
        self._passes: dict[tuple[str, int, int, bool], float] = {}
        self._messages: dict[tuple[str, str, int, int, bool], tuple[float, float]] = {}

    def seconds(self, action: Action) -> float:
        what, number, g = action
        piece = self.layout.pieces[number]
        key = piece.devices[g], g, piece.samples, what == "forward"
        if key not in self._passes:
            times = self.layout.plan.profile.devices[piece.devices[g]]
            seconds = times.forward if what == "forward" else times.backward
            self._passes[key] = seconds(*self.layout.segments[g], piece.samples)
        return self._passes[key]

    def crossing(self, piece: int, a: str, b: str, at: int, back: bool) -> tuple[float, float]:
        """(seconds on the links, latency) of a piece's values that cross cut `at`."""
        if a == b:
            return _NO_WAY
        key = a, b, at, self.layout.pieces[piece].samples, back
        if key not in self._messages:
            plan = self.layout.plan
            crossing = plan.profile.returned_bytes if back else plan.profile.activation_bytes
            size = coded_bytes(crossing(at, key[3]), codec_at(plan, at))
            rate = plan.fleet.path_rate(a, b, plan.route)
            self._messages[key] = size / rate, plan.fleet.path_latency(a, b)
        return self._messages[key]


def eager(layout: Layout) -> Orders:
    """List scheduling: among the actions that are ready, the one with the longest time to the end comes
    first."""
    return _schedule(layout)[0]


def last_backwards(layout: Layout) -> dict[tuple[str, int], float]:
    """When each device's last backward pass through each of its segments is over in the eager order, if all
    devices begin at 0 and the links carry nothing but samples, activations and their gradients."""
    return _schedule(layout)[1]


def _schedule(layout: Layout) -> tuple[Orders, dict[tuple[str, int], float]]:
    costs = _Costs(layout)
    urgency = _urgency(layout, costs)
    last = len(layout.segments) - 1
    orders: Orders = {device: [] for device in layout.plan.devices}
    ends: dict[tuple[str, int], float] = {}
    free: dict[str, float] = defaultdict(float)
    link: dict[tuple[str, str], float] = defaultdict(float)
    ready: dict[str, list[tuple[float, Action]]] = defaultdict(list)  # (-urgency, action)
    # (time, order, device, action): an action becomes possible, or (None) the device becomes free
    events: list[tuple[float, int, str, Action | None]] = []
    counter = 0

    def arrive(now: float, action: Action, origin: str, at: int) -> None:
        nonlocal counter
        piece = layout.pieces[action.piece]
        device = piece.devices[action.segment]
        seconds, latency = costs.crossing(
            action.piece, origin, device, at, action.what == "backward"
        )
        if origin != device:
            start = max(now, link[origin, device])
            link[origin, device] = start + seconds
            now = start + seconds + latency
        counter += 1
        heappush(events, (now, counter, device, action))

    for piece in layout.pieces:
        arrive(0.0, Action("forward", piece.micro, 0), piece.source, 0)
    while events:
        now = events[0][0]
        touched: dict[str, None] = {}
        # First handle all events of this moment, then choose: an action that has just become ready may be the
        # most urgent.
        while events and events[0][0] == now:
            _, _, device, new = heappop(events)
            if new is not None:
                heappush(ready[device], (-urgency[new], new))
            touched[device] = None
        for device in touched:
            if free[device] > now or not ready[device]:
                continue
            _, action = heappop(ready[device])
            orders[device].append(action)
            end = now + costs.seconds(action)
            free[device] = end
            counter += 1
            heappush(events, (end, counter, device, None))
            first_layer, last_layer = layout.segments[action.segment]
            if action.what == "forward" and action.segment < last:
                arrive(
                    end, Action("forward", action.piece, action.segment + 1), device, last_layer + 1
                )
            elif action.what == "forward":
                arrive(
                    end, Action("backward", action.piece, action.segment), device, last_layer + 1
                )
            elif action.segment > 0:
                arrive(
                    end, Action("backward", action.piece, action.segment - 1), device, first_layer
                )
            if action.what == "backward":
                ends[device, action.segment] = end
    return orders, ends


def _urgency(layout: Layout, costs: _Costs) -> dict[Action, float]:
    """Seconds from an action's start until its piece is finished, with its own links."""
    urgency: dict[Action, float] = {}
    for piece in layout.pieces:
        left = 0.0
        for g in range(len(layout.segments)):
            action = Action("backward", piece.micro, g)
            if g:
                left += sum(costs.crossing(piece.micro, piece.devices[g], piece.devices[g - 1],
                                           layout.segments[g][0], True))  # fmt: skip
            left += costs.seconds(action)
            urgency[action] = left
        for g in reversed(range(len(layout.segments))):
            action = Action("forward", piece.micro, g)
            if g + 1 < len(layout.segments):
                left += sum(costs.crossing(piece.micro, piece.devices[g], piece.devices[g + 1],
                                           layout.segments[g][1] + 1, False))  # fmt: skip
            left += costs.seconds(action)
            urgency[action] = left
    return urgency
