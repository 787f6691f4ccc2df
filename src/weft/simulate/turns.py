"""Which messages need not wait for their turn.

    turns = Turns()
    turns.add("pi", [(0, 0.005)])     # a route of the pi: the number and the latency of every hop
    turns.own()                       # {0}: only the pi sends over channel 0

If a single device sends over a channel and no message comes to it from another channel, its messages change
nothing that others use until they arrive. So the simulator sends them at once, in whatever order it looks at
the devices. Such a message must take some time until it arrives, and to its second channel. Else devices that
go on at the same moment could do so in another order.
"""

from __future__ import annotations


class Turns:
    """The routes of a program's messages."""

    def __init__(self) -> None:
        self.senders: dict[int, set[str]] = {}  # by first channel
        self.passed: set[int] = set()  # channels with messages that come from another channel
        self.onward: set[int] = set()  # channels whose messages go on over another channel
        self.timely = True  # whether every hop has a latency
        self.instant: set[int] = set()  # first channels of messages that take no time at all
        self.kept = False  # whether all messages have to wait for their turn

    def add(self, source: str, route: list[tuple[int, float]]) -> None:
        """Adds the (channel, latency) of every hop of a route."""
        if not route:
            return
        first, *others = (channel for channel, _ in route)
        self.senders.setdefault(first, set()).add(source)
        self.passed.update(others)
        if others:
            self.onward.add(first)
        self.timely = self.timely and all(latency > 0 for _, latency in route)

    def own(self) -> frozenset[int]:
        """The channels whose messages are sent at once."""
        if self.kept:
            return frozenset()
        alone = {channel for channel, devices in self.senders.items() if len(devices) == 1}
        alone -= self.passed | self.instant
        return frozenset(alone if self.timely else alone - self.onward)
