"""edgemove+: server, cut, minibatches in flight and codec chosen together, from smoothed measurements.

    policy = EdgeMovePlus(costs, in_flight=2)        # or in_flight=None: up to four

Every 50 minibatches it computes the exact period P of every choice. A change that holds for H seconds
and costs c of them (the pipeline runs empty, weights move) makes (H - c) / (P H) minibatches per
second; the best is taken where it makes 5% more than what runs now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.adapt.baselines import alone, ways_of
from weft.adapt.policy import Decision, Seen, Server, Setting
from weft.plan.edgemove_model import (
    Floats,
    SplitCosts,
    period,
    stage_seconds,
    useful_in_flight,
)
from weft.plan.plan import Codec

MOST_IN_FLIGHT = 4  # plain SGD takes no more iterations up to here
# The share of a new measurement in the mean: links change with every street corner and are measured
# well, a server's load changes over minutes and single minibatches say little of it.
SMOOTH = {"slowdown": 0.15, "up_bytes_per_s": 0.5, "down_bytes_per_s": 0.5, "rtt_s": 0.3}
TRIED = 4  # measurements before a server may replace one that works
GAIN = 0.05
HOLDS_S = 60.0  # a choice is not expected to last longer: loads and links change


class Choice(NamedTuple):
    rate: float  # minibatches per second, the change paid for
    period_s: float
    setting: Setting


class EdgeMovePlus:
    def __init__(
        self,
        costs: SplitCosts,
        every: int = 50,
        in_flight: int | None = None,
        codecs: Sequence[Codec] = ("none",),
    ) -> None:
        self.costs, self.every, self.in_flight = costs, every, in_flight
        self._coded = {codec: costs.coded(codec) for codec in codecs}
        self._smooth: dict[str, tuple[int, Server]] = {}

    def decide(self, seen: Seen) -> Decision | None:
        near = self._smoothed([server for server in seen.servers if server.tier == "edge"])
        if not near:
            return alone(seen, self.costs, "no server is in reach")
        now = seen.setting
        if now.worker is not None and not seen.lost:
            tried = [s for s in near if self._smooth[s.name][0] >= TRIED or s.name == now.worker]
        else:
            tried = near
        best = max(
            (self._best(tried, codec, now) for codec in self._coded), key=lambda choice: choice.rate
        )
        if best.rate * self.costs.alone_s <= 1:
            return alone(seen, self.costs, "no server is faster than the client alone")
        if now.worker is None or seen.lost:
            why = "the worker is lost" if seen.lost else "the best choice at the start"
            return Decision(best.setting, why)
        if best.setting == now or best.rate <= (1 + GAIN) / self._period(near, now):
            return None
        moved = "server" if best.setting.worker != now.worker else "cut or pipeline"
        return Decision(best.setting, f"another {moved}: {best.period_s * 1e3:.1f} ms expected")

    def _best(self, near: Sequence[Server], codec: Codec, now: Setting) -> Choice:
        """The best server, cut and count for one codec."""
        costs = self._coded[codec]
        stages = stage_seconds(costs, ways_of(near))
        if self.in_flight is None:
            counts = np.clip(useful_in_flight(stages), 1, MOST_IN_FLIGHT)
        else:
            counts = np.full(stages.client_s.shape, self.in_flight)
        periods = period(stages, counts)
        empty_s = np.sum(stages, axis=0)  # the pipeline runs empty and fills again: one whole way
        holds_s = np.minimum([server.stays_s for server in near], HOLDS_S)[:, None]
        spent_s = empty_s + self._moving_s(near, now)
        rates = np.maximum(holds_s - spent_s, 0.0) / (periods * np.maximum(holds_s, 1e-3))
        row, column = divmod(int(rates.argmax()), rates.shape[1])
        setting = Setting(near[row].name, column + 1, int(counts[row, column]), codec)
        return Choice(float(rates[row, column]), float(periods[row, column]), setting)

    def _moving_s(self, near: Sequence[Server], now: Setting) -> Floats:
        """Seconds in which weights move: a new worker gets its whole part, the old one what is new
        to it, and the client what comes back."""
        inner = slice(1, self.costs.layers)
        ways = ways_of(near)
        moved = np.tile(self.costs.worker_bytes[inner], (len(near), 1)) / ways[1][:, None]
        for row, server in enumerate(near):
            if server.name == now.worker:
                new = self.costs.param_bytes[now.cut] - self.costs.param_bytes[inner]
                moved[row] = np.where(
                    new > 0, new / server.up_bytes_per_s, -new / server.down_bytes_per_s
                )
        return moved

    def _period(self, near: Sequence[Server], now: Setting) -> float:
        """What runs now, by the same measurements as the alternatives."""
        server = next((server for server in near if server.name == now.worker), None)
        if server is None:
            return math.inf
        stages = stage_seconds(self._coded[now.codec], ways_of([server]))
        return float(period(stages, now.in_flight)[0, now.cut - 1])

    def _smoothed(self, measured: Sequence[Server]) -> list[Server]:
        """A running mean of each server in reach; one that was away starts anew."""
        found: dict[str, tuple[int, Server]] = {}
        for server in measured:
            count, known = self._smooth.get(server.name, (0, server))
            count += 1
            means = {}
            for name, gain in SMOOTH.items():
                old, new = getattr(known, name), getattr(server, name)
                means[name] = old + max(gain, 1 / count) * (new - old)
            found[server.name] = count, msgspec.structs.replace(server, **means)
        self._smooth = found
        return [server for _, server in found.values()]
