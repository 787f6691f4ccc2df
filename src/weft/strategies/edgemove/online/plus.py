"""edgemove+: server, cut, minibatches in flight and codec chosen together, from smoothed measurements.

    policy = EdgeMovePlus(costs, in_flight=2)        # or in_flight=None: up to four

Every 50 minibatches it computes the exact period P of every choice. A change that lasts H seconds and
costs c of them (the pipeline becomes empty, weights are sent) gives (H - c) / (P H) minibatches per
second. The best choice is taken if it gives 5% more than the present setting. Before a change to another
server, that server is probed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.codecs.registry import CodecName
from weft.fleet.fleet import Tier
from weft.plans.online import Decision, Fits, Seen, Server, Setting, always_fits
from weft.strategies.edgemove.model import (
    AnyStages,
    Floats,
    SplitCosts,
    Stages,
    Variation,
    noisy_period,
    period,
    stage_seconds,
    useful_in_flight,
)
from weft.strategies.edgemove.online.baselines import NO_ROOM, alone, ways_of

MOST_IN_FLIGHT = 4  # up to 4, plain SGD needs no more iterations
# The number of minibatches that a mean remembers. A new measurement counts by its minibatches. Links
# change at every street corner, and their measurements are good. A server's load changes over minutes,
# and single minibatches say little about it.
MEMORY = {"slowdown": 20, "up_bytes_per_s": 4, "down_bytes_per_s": 4, "rtt_s": 10}
GAIN = 0.05  # a change must promise at least this share more
CURIOUS = 0.02  # a server that promises this share more is probed
HOLDS_S = 150.0  # a choice is expected to last at most so long, because loads and links change
EVEN = Variation()  # minibatches do not vary


class Choice(NamedTuple):
    """A setting, and how many minibatches per second it promises."""

    rate: float  # minibatches per second, with the cost of the change
    period_s: float
    setting: Setting


class EdgeMovePlus:
    """The policy of edgemove+.

    `spread` says how much single minibatches vary, if that is known. `idle` is a slowdown that no server is
    below: a smaller measurement is chance.
    """

    def __init__(
        self,
        costs: SplitCosts,
        every: int = 50,
        in_flight: int | None = None,
        codecs: Sequence[CodecName] = ("none",),
        spread: Variation = EVEN,
        idle: float = 0.0,
        fits: Fits = always_fits,
        tiers: Sequence[Tier] = get_args(Tier),
    ) -> None:
        self.costs, self.every, self.in_flight = costs, every, in_flight
        self.spread, self.idle, self.fits, self.tiers = spread, idle, fits, tiers
        self._coded = {codec: costs.coded(codec) for codec in codecs}
        self._known: dict[str, Server] = {}  # means; `over` is their number of minibatches

    def decide(self, seen: Seen) -> Decision | None:
        near = self._means(seen)
        if not near:
            return alone(self.costs, "no server is in reach")
        now = seen.setting
        choices = (self._best(near, codec, seen.placed or now) for codec in self._coded)
        fitting = [choice for choice in choices if choice is not None]
        if not fitting:
            return alone(self.costs, NO_ROOM)
        best = max(fitting, key=lambda choice: choice.rate)
        whole = Setting(None, self.costs.layers)
        if best.rate * self.costs.alone_s <= 1 and self.fits(whole):
            return alone(self.costs, "no server is faster than the client alone")
        if now.worker is None or seen.lost:
            why = "the worker is lost" if seen.lost else "the best choice at the start"
            return Decision(best.setting, why)
        gain = best.rate * self._period(near, now) - 1
        other = best.setting.worker != now.worker
        # Among many rough measurements the best one is partly luck, so its server is probed first.
        if other and not seen.probed:
            return Decision(now, "is it better?", probe=True) if gain > CURIOUS else None
        if best.setting == now or gain <= GAIN:
            return None
        moved = "server" if other else "cut or pipeline"
        return Decision(best.setting, f"another {moved}: {best.period_s * 1e3:.1f} ms expected")

    def _best(self, near: Sequence[Server], codec: CodecName, placed: Setting) -> Choice | None:
        """The best server, cut and count for one codec; `placed` says where the weights are now."""
        stages = stage_seconds(self._coded[codec], ways_of(near))
        # The pipeline becomes empty and is filled again: that costs one minibatch from start to end.
        spent_s = stages.way_s + self._moving_s(near, placed)
        holds_s = np.minimum([server.stays_s for server in near], HOLDS_S)[:, None]
        share = np.maximum(holds_s - spent_s, 0.0) / np.maximum(holds_s, 1e-3)
        useful = np.clip(useful_in_flight(stages), 1, MOST_IN_FLIGHT)
        if self.in_flight is not None:
            counts = [np.full(useful.shape, self.in_flight)]
        elif self.fits is always_fits:
            counts = [useful]
        else:  # fewer in flight need fewer versions of the weights and fewer activations
            counts = [np.minimum(useful, most) for most in range(1, MOST_IN_FLIGHT + 1)]
        choices = (self._first_that_fits(near, codec, stages, count, share) for count in counts)
        fitting = [choice for choice in choices if choice is not None]
        return max(fitting, key=lambda choice: choice.rate, default=None)

    def _first_that_fits(
        self,
        near: Sequence[Server],
        codec: CodecName,
        stages: AnyStages,
        counts: NDArray[np.int64],
        share: Floats,
    ) -> Choice | None:
        """The fastest server and cut that fit into the memory of client and server; None if none fits."""
        if not counts.size:
            return None  # no cut leaves both sides a layer
        periods = self._periods(stages, counts)
        rates = share / periods
        order = [rates.argmax()] if self.fits is always_fits else np.argsort(-rates, axis=None)
        for index in order:
            row, column = divmod(int(index), rates.shape[1])
            setting = Setting(near[row].name, column + 1, int(counts[row, column]), codec)
            if self.fits(setting):
                return Choice(float(rates[row, column]), float(periods[row, column]), setting)
        return None

    def _moving_s(self, near: Sequence[Server], placed: Setting) -> Floats:
        """Seconds to send weights, by server and cut.

        A new worker gets all its layers. The present worker gets the layers that are new to it, or sends back
        those that the client takes.
        """
        inner = self.costs.inner
        ways = ways_of(near)
        moved = np.tile(self.costs.worker_bytes[inner], (len(near), 1)) / ways[1][:, None]
        for row, server in enumerate(near):
            if server.name == placed.worker:
                new = self.costs.param_bytes[placed.cut] - self.costs.param_bytes[inner]
                moved[row] = np.where(
                    new > 0, new / server.up_bytes_per_s, -new / server.down_bytes_per_s
                )
        return moved

    def _period(self, near: Sequence[Server], now: Setting) -> float:
        """Seconds per minibatch of the present setting, by the same measurements as the alternatives."""
        server = next((server for server in near if server.name == now.worker), None)
        if server is None:
            return math.inf
        stages = stage_seconds(self._coded[now.codec], ways_of([server]))
        return float(self._periods(stages, now.in_flight)[0, now.cut - 1])

    def _periods(self, stages: AnyStages, in_flight: int | NDArray[np.int64]) -> Floats:
        if not any(self.spread) or not isinstance(stages, Stages):
            return period(stages, in_flight)
        return noisy_period(stages, in_flight, self.spread)

    def _means(self, seen: Seen) -> list[Server]:
        """The means of every machine in reach. A machine that was out of reach starts with a new mean."""
        probed = {server.name: server for server in seen.probed}
        means: dict[str, Server] = {}
        for server in seen.servers:
            if server.tier not in self.tiers:
                continue
            known = mean_of(self._known.get(server.name), server)
            probe = probed.get(server.name, server)
            means[server.name] = known if probe == server else mean_of(known, probe)
        self._known = means
        return [
            msgspec.structs.replace(server, slowdown=max(server.slowdown, self.idle))
            for server in means.values()
        ]


def mean_of(known: Server | None, new: Server) -> Server:
    """The mean of what is known of a server and a new measurement, weighted by their minibatches."""
    if known is None:
        return new
    means = {}
    for name, memory in MEMORY.items():
        old, share = getattr(known, name), new.over / (min(known.over, memory) + new.over)
        means[name] = old + share * (getattr(new, name) - old)
    return msgspec.structs.replace(new, over=known.over + new.over, **means)
