"""Sends minibatches to the devices that load them, a bounded number ahead of where each of them is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import zenoh

from weft.graph.loss.totals import TOTAL
from weft.plans.plan import Plan
from weft.runtime.node.samples import TARGET, Minibatch, by_name
from weft.runtime.wire import topics
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.frames import Header, pack_header, pack_tensors
from weft.runtime.wire.seal import Numbers, seal_header

Feed = Callable[[int], Minibatch]
FEED_BYTES = 64 << 20  # how much may wait at the loading device
LEAST, MOST = 4, 256  # minibatches
COORDINATOR = "coordinator"  # the sender's name


class Feeder:
    """Sends samples from this machine to the devices that load them: to each its own share."""

    def __init__(self, crew: Crew, run: str, feed: Feed) -> None:
        self._session, self._group, self._run = crew.session, crew.group, run
        self._key, self._numbers = crew.secret(run).tensors, Numbers()
        self._feed = feed
        self._ahead = 0
        self._publishers: dict[str, Any] = {}
        self._made: dict[int, Minibatch] = {}  # minibatches that some of several sources still need

    def feed(
        self, plan: Plan, lag: int, at: Mapping[str, int], fed: Mapping[str, int], last: int
    ) -> dict[str, int]:
        """Each source is at minibatch `at`, has had those before `fed`, and keeps `lag` of them until
        others have done with them. Returns up to where each is fed then."""
        now = {s: self._feed_one(plan, s, lag, at[s], fed[s], last) for s in plan.sources}
        self._made = {step: made for step, made in self._made.items() if step >= min(now.values())}
        return now

    def _feed_one(self, plan: Plan, source: str, lag: int, at: int, fed: int, last: int) -> int:
        least = LEAST + lag
        self._ahead = max(self._ahead, least)
        publisher = self._publisher(source)
        first, end = plan.owned_by(source)
        while fed < min(last, at + self._ahead):
            inputs, target = self._minibatch(fed, keep=len(plan.sources) > 1)
            tensors = {**inputs, **{TARGET + n: t for n, t in by_name(target).items()}}
            if plan.owners:
                tensors = {
                    name: tensor if name.startswith(TARGET + TOTAL) else tensor[first:end]
                    for name, tensor in tensors.items()
                }
            specs, payload = pack_tensors(tensors)
            self._ahead = max(least, min(MOST, FEED_BYTES // max(len(payload), 1)))
            header = Header(self._run, plan.version, fed, "feed", 0, 0, COORDINATOR,
                            source, len(payload), specs, count=self._numbers.next())  # fmt: skip
            publisher.put(payload, attachment=seal_header(self._key, pack_header(header)))
            fed += 1
        return fed

    def _minibatch(self, step: int, keep: bool) -> Minibatch:
        """Minibatch `step`; the user's function is asked for it once, however many sources there are."""
        made = self._made.get(step) or self._feed(step)
        if keep:
            self._made[step] = made
        return made

    def _publisher(self, source: str) -> Any:
        if source not in self._publishers:
            self._publishers[source] = self._session.declare_publisher(
                topics.data(self._group, source, COORDINATOR, self._run),
                congestion_control=zenoh.CongestionControl.BLOCK,  # never drop a minibatch
            )
        return self._publishers[source]
