"""A policy on a walk through a simulated city, minibatch by minibatch, as in a live run.

    journey = travel(EdgeMove(costs, seed=3), costs, day, steps=10_000, seed=3)
    journey.seconds, journey.changes

A change of setting waits until the pipeline is empty. Then training stops while weights are sent. If
the client leaves the worker's cell, the minibatches in flight are done again with another worker.
Measuring and probing happen beside the training and cost nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from weft.fleet.city import CLOUD, Day
from weft.fleet.mobility import stays_s
from weft.plans.online import Decision, Policy, Seen, Server, Setting
from weft.strategies.edgemove.model import SplitCosts
from weft.strategies.edgemove.online.baselines import PROFILED
from weft.strategies.edgemove.online.pipeline import LINK_CV, WORKER_CV, Pipeline, Road, draw_noise

LOOKED, PROBED = 4, 50  # minibatches in a measurement on the way, and in a probe
RTT_CV = 0.1  # of one measurement


class Change(NamedTuple):
    """A change of setting on a simulated walk."""

    step: int
    now_s: float  # when the pipeline was empty
    before: Setting
    after: Setting
    pause_s: float  # how long training stopped
    why: str

    @property
    def new_worker(self) -> bool:
        """Whether the worker changed, not only the cut, count or codec."""
        return self.before.worker != self.after.worker


@dataclass
class Journey:
    """What happened: the end of each minibatch in seconds, every change, and the number of probes."""

    ends_s: list[float] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    probes: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of the whole journey."""
        return self.ends_s[-1]

    @property
    def paused_s(self) -> float:
        """Seconds in which training stopped."""
        return math.fsum(change.pause_s for change in self.changes)


def travel(policy: Policy, costs: SplitCosts, day: Day, steps: int, seed: int) -> Journey:
    """Train `steps` minibatches on a client that walks through the day.

    The clock starts at the first decision, so the first profile and the first upload count.
    """
    return _Travel(policy, costs, day, steps, seed).to_the_end()


class _Travel:
    """The state of one journey."""

    def __init__(self, policy: Policy, costs: SplitCosts, day: Day, steps: int, seed: int) -> None:
        self.policy, self.costs, self.day, self.steps = policy, costs, day, steps
        self.journey = Journey()
        self.setting = Setting(None, costs.layers)
        self.now = 0.0
        self.pipe: Pipeline | None = None
        self.probed: tuple[Server, ...] = ()
        self.random = np.random.default_rng([seed, 4])
        self.noise = draw_noise(np.random.default_rng([seed, 5]), steps)

    def to_the_end(self) -> Journey:
        """Run and decide in turn, until all minibatches are done."""
        ends = self.journey.ends_s
        self.look(0.0, lost=False)
        while len(ends) < self.steps:
            begin, done = self.now, len(ends)
            lost = self.run(min(self.policy.every, self.steps - done))
            count = len(ends) - done
            if len(ends) < self.steps:
                self.look((self.now - begin) / count if count else 0.0, lost)
        return self.journey

    def run(self, count: int) -> bool:
        """Run at most `count` minibatches; True if the worker was lost."""
        if self.pipe is None:
            self.run_alone(count)
            return False
        lost = self.pipe.run(count, self.journey.ends_s)
        self.now = max(self.now, self.pipe.leaves_s) if lost else self.pipe.client
        return lost

    def run_alone(self, count: int) -> None:
        """Train without a worker. If no server was in reach, stop when one is: the policy then decides."""
        ends, nobody = self.journey.ends_s, not self.anybody()
        for n in range(len(ends), len(ends) + count):
            self.now += self.costs.alone_s * self.noise.client[n]
            ends.append(self.now)
            if nobody and self.anybody():
                return

    def anybody(self) -> bool:
        """Whether any edge server is in reach now."""
        return bool(self.day.at(self.now).reach[:-1].any())

    def look(self, period_s: float, lost: bool) -> None:
        """Measure, ask the policy, and do what it decides."""
        step = len(self.journey.ends_s)
        probed = self.measure(PROBED) if step == 0 or lost else self.probed
        servers = self.measure(LOOKED)
        seen = Seen(step, self.now, self.setting, period_s, servers, lost, probed=probed)
        decision = self.policy.decide(seen)
        self.probed = ()
        if decision is None and lost:
            decision = Decision(Setting(None, self.costs.layers), "the worker is lost")
        if decision is None:
            return
        if decision.probe:
            self.probed = self.measure(PROBED)
            self.journey.probes += 1
        if lost or decision.setting != self.setting:
            self.change(decision, lost)

    def change(self, decision: Decision, lost: bool) -> None:
        """Empty the pipeline, pause while weights are sent, and go on with the new setting."""
        if self.pipe is not None and not lost:
            lost = self.pipe.flush(self.journey.ends_s, self.steps)
            self.now = max(self.now, self.pipe.leaves_s if lost else self.pipe.client)
        before, after = self.setting, decision.setting
        pause = self.pause_s(decision)
        step = len(self.journey.ends_s)
        self.journey.changes.append(Change(step, self.now, before, after, pause, decision.why))
        self.now += pause
        self.setting = after
        self.pipe = None if after.worker is None else self.pipeline(after)

    def pause_s(self, decision: Decision) -> float:
        """Seconds in which training stops.

        Layers that change sides are sent over the link. A new worker gets all its layers; their time on the
        client's uplink is counted.
        """
        before, after, costs = self.setting, decision.setting, self.costs
        if after.worker is None:
            return 0.0
        moment, index = self.day.at(self.now), self.index(after.worker)
        up, down = moment.up_bytes_per_s[index], moment.down_bytes_per_s[index]
        if before.worker == after.worker:
            moved = costs.param_bytes[before.cut] - costs.param_bytes[after.cut]
            seconds = moved / up if moved > 0 else -moved / down
        else:
            seconds = costs.worker_bytes[after.cut] / up
        if decision.profile:
            seconds += PROFILED * (costs.alone_s + costs.worker_s[0] * moment.slowdown[index])
        return float(seconds)

    def pipeline(self, setting: Setting) -> Pipeline:
        """An empty pipeline with this setting, from now on."""
        assert setting.worker is not None
        index, cut, begin = self.index(setting.worker), setting.cut, self.now
        costs = self.costs.coded(setting.codec)

        def lay(until_s: float) -> Road:
            whole = self.day.until(until_s)
            gone = np.flatnonzero(~whole.reach[int(begin) :, index])
            return Road(
                (costs.up_bytes[cut] / whole.up_bytes_per_s[:, index]).tolist(),
                (costs.worker_s[cut] * whole.slowdown[:, index]).tolist(),
                (costs.down_bytes[cut] / whole.down_bytes_per_s[:, index]).tolist(),
                (whole.rtt_s[:, index] / 2).tolist(),
                float(int(begin) + gone[0]) if len(gone) else math.inf,
            )

        forward, whole = float(costs.forward_s[cut]), float(costs.client_s[cut])
        return Pipeline(forward, whole - forward, setting.in_flight, self.noise, begin, lay)

    def measure(self, minibatches: int) -> tuple[Server, ...]:
        """Every server in reach, with the noise of a mean over so many minibatches.

        The worker's mean is over all minibatches since the last decision.
        """
        moment, city, names = self.day.at(self.now), self.day.city, self.day.city.names
        near = np.flatnonzero(moment.reach)
        counts = np.full(len(near), float(minibatches))
        if self.setting.worker is not None:
            counts[near == self.index(self.setting.worker)] = max(minibatches, self.policy.every)
        slow, up, down, rtt = (
            part[near]
            * np.maximum(1 + cv / np.sqrt(counts) * self.random.standard_normal(len(near)), 0.1)
            for part, cv in zip(moment[1:], (WORKER_CV, LINK_CV, LINK_CV, RTT_CV), strict=True)
        )
        where, velocity = (
            self.day.walk.at(np.array([self.now]))[0],
            self.day.walk.velocity(self.now),
        )
        stays = stays_s(where - city.places[near], velocity, city.radius[near])
        rows = np.stack([slow, up, down, rtt, stays, counts]).T.tolist()
        return tuple(
            Server(names[i], a, b, c, d, "cloud" if names[i] == CLOUD else "edge", stay, int(n))
            for i, (a, b, c, d, stay, n) in zip(near, rows, strict=True)
        )

    def index(self, name: str) -> int:
        return self.day.city.names.index(name)
