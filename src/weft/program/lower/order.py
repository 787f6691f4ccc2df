"""The order in which a device works on the pieces of a plan. `layers` writes the messages.

pipelined  whole layers: one forward, one backward, a few pieces ahead (`schedule`)
staged     as HierTrain draws it: segment by segment, all pieces forward, then all backward
eager      any action that is ready, the longest time to the end first: no device waits while it has work
answers    inference: the source feeds a few pieces ahead, then waits for an answer before the next

All orders are static: they are decided here, from the plan, the profile and the links, and are plain data.
"""

from __future__ import annotations

from collections import defaultdict

from weft.program.lower.actions import Action, Orders
from weft.program.lower.eager import eager
from weft.program.lower.layout import Layout, Piece
from weft.program.lower.schedule import forwards_ahead, one_forward_one_backward


def orders(layout: Layout) -> Orders:
    """The order of every device of a plan."""
    if layout.plan.mode == "infer":
        return answers(layout)
    if not layout.split:
        return pipelined(layout)
    passes = eager(layout) if layout.plan.schedule == "eager" else staged(layout)
    # The pieces that other devices begin with leave first: the links are busy while we compute.
    feeds = [p for p in layout.pieces if _is_fed(p)]
    return {
        device: [
            *(Action("feed", p.micro, 0) for p in feeds if p.source == device),
            *passes.get(device, ()),
            *(Action("update", 0, g) for g in reversed(layout.held_by(device))),
        ]
        for device in layout.plan.devices
    }


def _is_fed(piece: Piece) -> bool:
    return piece.devices[0] != piece.source


def pipelined(layout: Layout) -> Orders:
    """The order for one lane. If a device has several segments, there is one piece, which leaves it and comes
    back."""
    plan, count = layout.plan, len(layout.pieces)
    by_device: Orders = {}
    for device in plan.devices:
        held = layout.held_by(device)
        feeds: list[Action] = []
        if device == plan.source and _is_fed(layout.pieces[0]):
            feeds = [Action("feed", micro, 0) for micro in range(count)]
        ahead = min(count, plan.in_flight) if held else count
        by_device[device] = feeds[:ahead]
        waiting = iter(feeds[ahead:])
        for action in _passes(layout, held):
            by_device[device].append(action)
            if action.what == "backward":
                by_device[device] += [fed for fed in (next(waiting, None),) if fed is not None]
        by_device[device] += [Action("update", 0, g) for g in held]
    return by_device


def _passes(layout: Layout, held: list[int]) -> list[Action]:
    """The forwards and backwards of a device with these segments of the only lane."""
    if len(held) > 1:
        back = [Action("backward", 0, g) for g in reversed(held)]
        return [*(Action("forward", 0, g) for g in held), *back]
    count, in_flight = len(layout.pieces), layout.plan.in_flight
    return [
        Action(what, micro, g)
        for g in held
        for what, micro in one_forward_one_backward(
            count, forwards_ahead(g, len(layout.segments), count, in_flight)
        )
    ]


def answers(layout: Layout) -> Orders:
    """The order of an inference: pieces go through the segments in order, and the source waits for
    answers."""
    plan, count = layout.plan, len(layout.pieces)
    by_device: Orders = {
        device: [
            Action("forward", micro, g) for micro in range(count) for g in layout.held_by(device)
        ]
        for device in plan.devices
    }
    held = layout.held_by(plan.source)
    begins = 0 in held
    source = by_device[plan.source] = []
    for what, micro in one_forward_one_backward(count, min(count, plan.in_flight)):
        if what == "forward":
            source.append(Action("forward" if begins else "feed", micro, 0))
        else:
            source += [Action("forward", micro, g) for g in held if g > 0]
            source.append(Action("answer", micro, 0))
    return by_device


def staged(layout: Layout) -> Orders:
    """Forward: this device's own pieces first. Backward: other devices' pieces first, because their
    gradients must still travel."""
    by_device: Orders = defaultdict(list)
    count = len(layout.segments)
    for g in range(count):
        for piece in sorted(layout.pieces, key=lambda p: visits(p.devices, g)):
            by_device[piece.devices[g]].append(Action("forward", piece.micro, g))
    for g in reversed(range(count)):
        for piece in sorted(layout.pieces, key=lambda p: -visits(p.devices, g)):
            by_device[piece.devices[g]].append(Action("backward", piece.micro, g))
    return dict(by_device)


def visits(devices: tuple[str, ...], g: int) -> int:
    """How many other devices had this piece before segment g."""
    return len({d for d in devices[:g] if d != devices[g]})
