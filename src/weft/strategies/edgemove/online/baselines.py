"""The policies that EdgeMove's paper compares with. The same seed gives the same decisions.

policy = PipeDreamE(costs, seed=3)
decision = policy.decide(seen)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from weft.codecs.registry import CodecName
from weft.plans.online import Decision, Fits, Seen, Server, Setting, always_fits
from weft.strategies.edgemove.model import Floats, SplitCosts, Ways, period, stage_seconds

IN_FLIGHT = 2  # PipeDream's number for two stages; all policies get the same
PROFILED = 140  # minibatches that a layer-by-layer profile runs, for every layer on both sides
NO_ROOM = "no cut leaves both sides a layer and fits into the memory of client and server"
NEARBY = 0.5  # the share of the reachable servers, by round trip, that counts as near


def ways_of(servers: Iterable[Server]) -> Ways:
    """The numbers of several servers as arrays."""
    rows = [(s.slowdown, s.up_bytes_per_s, s.down_bytes_per_s, s.rtt_s, s.shared) for s in servers]
    return Ways(*np.array(rows, dtype=float).T)


class OnDevice:
    """The client trains alone."""

    def __init__(self, costs: SplitCosts, every: int = 500) -> None:
        self.every = every

    def decide(self, seen: Seen) -> Decision | None:
        return None


class Chosen:
    """The common part of policies that have one count in flight and one codec for the whole run."""

    def __init__(
        self,
        costs: SplitCosts,
        every: int,
        in_flight: int = IN_FLIGHT,
        codec: CodecName = "none",
        fits: Fits = always_fits,
    ) -> None:
        self.costs, self.every, self.in_flight = costs.coded(codec), every, in_flight
        self.codec, self.fits = codec, fits

    def setting(self, worker: str | None, cut: int) -> Setting:
        """A setting with the policy's count and codec."""
        return Setting(worker, cut, self.in_flight, self.codec)

    def best_cut(self, worker: str, seconds: Floats) -> int | None:
        """The fastest cut that fits into the memory of both sides; `seconds` are those of cut 1, 2, ..."""
        by_seconds = (int(index) + 1 for index in np.argsort(seconds, kind="stable"))
        return next((cut for cut in by_seconds if self.fits(self.setting(worker, cut))), None)


class DeviceCloud(Chosen):
    """One cloud machine for the whole run.

    It profiles once. It cuts again if the data rates changed so much that another cut is better. It does
    not notice how busy a device is.
    """

    def __init__(
        self, costs: SplitCosts, every: int = 50, gain: float = 0.05, **settings: Any
    ) -> None:
        super().__init__(costs, every, **settings)
        self.gain = gain
        self._profiled: Server | None = None

    def decide(self, seen: Seen) -> Decision | None:
        cloud = next((s for s in seen.servers if s.tier == "cloud"), None)
        if cloud is None:
            return alone(self.costs, "the cloud is out of reach")
        if self._profiled is None:
            self._profiled = cloud
        known = msgspec.structs.replace(
            cloud, slowdown=self._profiled.slowdown, rtt_s=self._profiled.rtt_s
        )
        periods = period(stage_seconds(self.costs, ways_of([known])), self.in_flight)[0]
        best = self.best_cut(cloud.name, periods)
        if best is None:
            return alone(self.costs, NO_ROOM)
        now = seen.setting
        if now.worker == cloud.name:
            if periods[best - 1] > (1 - self.gain) * periods[now.cut - 1]:
                return None
            return Decision(self.setting(cloud.name, best), "the data rates changed")
        return Decision(self.setting(cloud.name, best), "the best cut for the cloud", profile=True)


class PipeDreamE(Chosen):
    """A random near server, kept as long as it is in reach.

    The cut balances computing and ignores links. The nearer half of the servers, by ping, counts as near.
    Before every choice a layer-by-layer profile is made, and training stops for it.
    """

    def __init__(self, costs: SplitCosts, every: int = 500, seed: int = 0, **settings: Any) -> None:
        super().__init__(costs, every, **settings)
        self._random = np.random.default_rng([seed, 11])

    def decide(self, seen: Seen) -> Decision | None:
        if seen.setting.worker is not None and not seen.lost:
            return None
        near = [server for server in seen.probed or seen.servers if server.tier == "edge"]
        if not near:
            return alone(self.costs, "no server is in reach")
        near = sorted(near, key=lambda server: server.rtt_s)[: math.ceil(len(near) * NEARBY)]
        chosen = near[int(self._random.integers(len(near)))]
        cut = self.best_cut(chosen.name, self.computing(chosen.slowdown))
        if cut is None:
            return alone(self.costs, NO_ROOM)
        why = "the worker is lost" if seen.lost else "a server at random"
        return Decision(self.setting(chosen.name, cut), why, profile=True)

    def computing(self, slowdown: float) -> Floats:
        """By cut: the seconds of the side that computes longer."""
        inner, home = self.costs.inner, self.costs.home
        mine, theirs = self.costs.client_s[inner], self.costs.worker_s[inner]
        if home is not None:
            mine, theirs = mine + home.client_s, theirs - home.worker_s
        longer: Floats = np.maximum(mine, theirs * slowdown)
        return longer


def alone(costs: SplitCosts, why: str) -> Decision:
    """The client trains alone. If it already does, this changes nothing and gives the reason."""
    return Decision(Setting(None, costs.layers), why)
