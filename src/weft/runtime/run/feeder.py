"""Sends minibatches to the device that loads them, a bounded number ahead of where it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zenoh
from torch import Tensor

from weft.plans.plan import Plan
from weft.runtime.wire.frames import Header, pack_header, pack_tensors

Minibatch = tuple[dict[str, Tensor], Tensor | None]
Feed = Callable[[int], Minibatch]
FEED_BYTES = 64 << 20  # how much may wait at the loading device
LEAST, MOST = 4, 256  # minibatches


class Feeder:
    """Sends samples from this machine to the device that loads them."""

    def __init__(self, session: Any, group: str, run: str, feed: Feed) -> None:
        self._session, self._group, self._run = session, group, run
        self._feed = feed
        self._ahead = 0
        self._publishers: dict[str, Any] = {}

    def feed(self, plan: Plan, lag: int, at: int, fed: int, last: int) -> int:
        """The plan's source is at minibatch `at`, has had those before `fed`, and keeps `lag` of them
        until others have done with them. Returns up to where it is fed then."""
        least = LEAST + lag
        self._ahead = max(self._ahead, least)
        publisher = self._publisher(plan.source)
        while fed < min(last, at + self._ahead):
            inputs, target = self._feed(fed)
            tensors = {**inputs, **({"target": target} if target is not None else {})}
            specs, payload = pack_tensors(tensors)
            self._ahead = max(least, min(MOST, FEED_BYTES // max(len(payload), 1)))
            header = Header(self._run, plan.version, fed, "feed", 0, 0, "coordinator",
                            plan.source, len(payload), specs)  # fmt: skip
            publisher.put(payload, attachment=pack_header(header))
            fed += 1
        return fed

    def _publisher(self, source: str) -> Any:
        if source not in self._publishers:
            self._publishers[source] = self._session.declare_publisher(
                f"{self._group}/data/{source}",
                congestion_control=zenoh.CongestionControl.BLOCK,  # never drop a minibatch
            )
        return self._publishers[source]
