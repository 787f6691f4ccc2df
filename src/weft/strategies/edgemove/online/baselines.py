"""The policies that EdgeMove's paper compares with. Each is deterministic given its seed.

policy = PipeDreamE(costs, seed=3)
decision = policy.decide(seen)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from weft.plans.online import Decision, Seen, Server, Setting
from weft.strategies.edgemove.model import SplitCosts, Ways, period, stage_seconds

IN_FLIGHT = 2  # PipeDream's count for two stages; all get the same
PROFILED = 140  # minibatches that every layer runs on both sides in a layer-by-layer profile
NEARBY = 0.5  # of the servers in reach, by round trip


def ways_of(servers: Iterable[Server]) -> Ways:
    """Several servers' numbers side by side."""
    rows = [(s.slowdown, s.up_bytes_per_s, s.down_bytes_per_s, s.rtt_s) for s in servers]
    return Ways(*np.array(rows, dtype=float).T)


class OnDevice:
    """The client trains alone."""

    def __init__(self, costs: SplitCosts, every: int = 500) -> None:
        self.every = every

    def decide(self, seen: Seen) -> Decision | None:
        return None


class DeviceCloud:
    """One cloud machine for the whole run. It profiles once, and cuts again when the data rates
    have changed so much that another cut is better; it does not see how busy anybody is."""

    def __init__(
        self, costs: SplitCosts, every: int = 50, in_flight: int = IN_FLIGHT, gain: float = 0.05
    ) -> None:
        self.costs, self.every, self.in_flight, self.gain = costs, every, in_flight, gain
        self._profiled: Server | None = None

    def decide(self, seen: Seen) -> Decision | None:
        cloud = next((s for s in seen.servers if s.tier == "cloud"), None)
        if cloud is None:
            return alone(self.costs, "the cloud is out of reach")
        if self._profiled is None:
            self._profiled = cloud
        known = Server(
            cloud.name, self._profiled.slowdown, cloud.up_bytes_per_s, cloud.down_bytes_per_s,
            self._profiled.rtt_s, "cloud",
        )  # fmt: skip
        periods = period(stage_seconds(self.costs, ways_of([known])), self.in_flight)[0]
        best = int(periods.argmin()) + 1
        now = seen.setting
        if now.worker == cloud.name:
            if periods[best - 1] > (1 - self.gain) * periods[now.cut - 1]:
                return None
            return Decision(Setting(cloud.name, best, self.in_flight), "the data rates changed")
        best_cut = Setting(cloud.name, best, self.in_flight)
        return Decision(best_cut, "the best cut for the cloud", profile=True)


class PipeDreamE:
    """A random server nearby, kept as long as it is in reach; the cut balances computing and ignores
    links. Nearby are those that answer a ping sooner than half of the others do. Every choice is
    preceded by a layer-by-layer profile, for which training stops."""

    def __init__(
        self, costs: SplitCosts, every: int = 500, seed: int = 0, in_flight: int = IN_FLIGHT
    ) -> None:
        self.costs, self.every, self.in_flight = costs, every, in_flight
        self._random = np.random.default_rng([seed, 11])

    def decide(self, seen: Seen) -> Decision | None:
        if seen.setting.worker is not None and not seen.lost:
            return None
        near = [server for server in seen.probed or seen.servers if server.tier == "edge"]
        if not near:
            return alone(self.costs, "no server is in reach")
        near = sorted(near, key=lambda server: server.rtt_s)[: math.ceil(len(near) * NEARBY)]
        chosen = near[int(self._random.integers(len(near)))]
        inner = slice(1, self.costs.layers)
        worker = self.costs.worker_s[inner] * chosen.slowdown
        cut = int(np.maximum(self.costs.client_s[inner], worker).argmin()) + 1
        why = "the worker is lost" if seen.lost else "a server at random"
        return Decision(Setting(chosen.name, cut, self.in_flight), why, profile=True)


def alone(costs: SplitCosts, why: str) -> Decision:
    """The client goes on by itself. Where it already does, this changes nothing and tells why."""
    return Decision(Setting(None, costs.layers), why)
