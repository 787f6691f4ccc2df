"""What a running Timeline says about devices and links: period, slowdowns, rates, round trips.

    watch = Watch(plan)
    watch.take(timeline)                   # of the minibatches since the last look
    watch.period_s
    watch.slowdown("edge1")                # measured seconds divided by the profile's
    watch.rate("phone", "edge1")           # measured bytes per second of its messages
    watch.fleet(), watch.profile()         # for a planner

If a device did nothing, or nothing crossed a link, the last known value stays. Before the first
measurement the plan's own values are used.
"""

from __future__ import annotations

import statistics
from collections import defaultdict

import msgspec

from weft.fleet.fleet import Fleet, Link
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.program.cost import compute_seconds
from weft.program.instructions import Backward, Forward, Update
from weft.program.lower.lower import lower
from weft.program.timeline import Span, Timeline

SHORTEST_S = 2e-5  # a shorter transfer says nothing about the rate
WAITED_S = 2e-4  # a device that waited at least so long took its message when it arrived


class Watch:
    """Keeps the last measurements of devices and links."""

    def __init__(self, plan: Plan, shaped: bool = True) -> None:
        self.period_s = 0.0
        # On a real network a transfer's span is only the time to hand it over.
        self._shaped = shaped
        self._slowdowns: dict[str, float] = {}
        self._rates: dict[tuple[str, str], float] = {}
        self._rtts: dict[frozenset[str], float] = {}
        # The whole fleet, because a later plan may be for fewer devices.
        self._fleet, self._profile = plan.fleet, plan.profile
        self.follow(plan)

    def follow(self, plan: Plan) -> None:
        """From now on this plan runs. What is known of devices and links stays known."""
        self.plan = plan
        self._expected = {
            (device, type(i).__name__.lower(), f"{i.layers[0]}-{i.layers[1]}"): compute_seconds(
                plan.profile, device, i
            )
            for device, code in lower(plan).code.items()
            for i in code
            if isinstance(i, Forward | Backward | Update)
        }
        self._channels = {hop.channel: (hop.source, hop.dest) for hop in self._fleet.hops()}

    def take(self, timeline: Timeline) -> None:
        """Learn from the minibatches of a timeline."""
        if len(timeline.step_ends) > 2:
            self.period_s = timeline.step_s
        measured: dict[str, float] = defaultdict(float)
        expected: dict[str, float] = defaultdict(float)
        crossed: dict[str, list[Span]] = defaultdict(list)
        losses: dict[tuple[str, int, int], float] = {}
        for span in timeline.spans:
            if span.what == "transfer":
                crossed[span.where].append(span)
                continue
            if span.what == "loss":  # counts as a part of the backward pass that follows it
                losses[span.where, span.step, span.micro] = span.end - span.start
                continue
            seconds = self._expected.get((span.where, span.what, span.label))
            if seconds:
                measured[span.where] += span.end - span.start
                expected[span.where] += seconds
                if span.what == "backward":
                    measured[span.where] += losses.pop((span.where, span.step, span.micro), 0.0)
        self._slowdowns |= {d: measured[d] / expected[d] for d in measured}
        for channel, spans in crossed.items() if self._shaped else ():
            self._learn_rate(channel, spans)
        self._learn_round_trips(timeline)

    def _learn_rate(self, channel: str, spans: list[Span]) -> None:
        ends = self._channels.get(channel)
        long = [s for s in spans if s.end - s.start > SHORTEST_S and s.bytes]
        if ends is not None and long:
            self._rates[ends] = sum(s.bytes for s in long) / sum(s.end - s.start for s in long)

    def _learn_round_trips(self, timeline: Timeline) -> None:
        """Learn round trips: a message has arrived when the device that waited for it goes on.

        There and back are added, so it does not matter whether the clocks of two machines agree.
        """
        left: dict[tuple[str, int, str], Span] = {}
        for span in timeline.spans:
            if span.what == "transfer":
                tensor, _, dest = span.label.partition(">")
                left[dest, span.step, tensor] = span
        ways: dict[tuple[str, str], list[float]] = defaultdict(list)
        for span in timeline.spans:
            if span.what != "wait" or span.end - span.start < WAITED_S:
                continue
            tensor = span.label.rpartition(".")[0]
            sent = left.get((span.where, span.step, tensor))
            ends = self._channels.get(sent.where) if sent else None
            if sent is not None and ends is not None and ends[1] == span.where:
                ways[ends].append(span.end - sent.end)
        for (a, b), there in ways.items():
            back = ways.get((b, a))
            if back:
                trip = max(0.0, statistics.median(there) + statistics.median(back))
                self._rtts[frozenset((a, b))] = trip

    def slowdown(self, device: str) -> float:
        """The device's measured seconds divided by the profile's. Before any measurement those of another
        node of its host, whose load they share; else 1."""
        if device in self._slowdowns:
            return self._slowdowns[device]
        devices = self._profile.devices
        host = devices[device].host if device in devices else ""
        mates = [s for d, s in self._slowdowns.items() if host and devices[d].host == host]
        return max(mates, default=1.0)

    def rate(self, source: str, dest: str) -> float:
        """Bytes per second over a direct link: as measured, else as in the plan's fleet."""
        measured = self._rates.get((source, dest))
        return (
            self._fleet.path_rate(source, dest, self.plan.route) if measured is None else measured
        )

    def rtt(self, a: str, b: str) -> float:
        """Seconds there and back between two devices: as measured, else as in the plan's fleet."""
        measured = self._rtts.get(frozenset((a, b)))
        return self._fleet.path_latency(a, b) * 2 if measured is None else measured

    def probed(
        self, device: str, source: str, slowdown: float, up: float, down: float, rtt: float
    ) -> None:
        """Take the results of a probe from `source`."""
        self._slowdowns[device] = slowdown
        self._rates[source, device], self._rates[device, source] = up, down
        self._rtts[frozenset((source, device))] = rtt

    def fleet(self) -> Fleet:
        """The plan's fleet with the measured links."""
        return Fleet(
            self._fleet.devices,
            tuple(self._measured(link) for link in self._fleet.link),
            self._fleet.medium,
        )

    def _measured(self, link: Link) -> Link:
        a, b = link.between
        up, down = self._rates.get((a, b)), self._rates.get((b, a))
        trip = self._rtts.get(frozenset((a, b)))
        return msgspec.structs.replace(
            link,
            up_mbps=link.up_mbps if up is None else up * 8e-6 / (1 - link.loss),
            down_mbps=link.down_mbps if down is None else down * 8e-6 / (1 - link.loss),
            latency_ms=link.latency_ms if trip is None else trip * 500,
        )

    def profile(self) -> Profile:
        """The plan's profile with the measured speed of every device."""
        devices = {
            name: times.scaled(self.slowdown(name)) for name, times in self._profile.devices.items()
        }
        return msgspec.structs.replace(self._profile, devices=devices)
