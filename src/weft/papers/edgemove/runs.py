"""The settings of EdgeMove's evaluation, and the results of every policy in them.

    runs = run_city(city, trajectories=40, ours=10, tell=silent)
    runs.speedup("vgg-cifar", "edgemove")
    runs.gain("vgg-cifar", "edgemove", "pipedream-e")     # with its standard error

The paper prints neither its links' rates nor its machines' times per iteration. Those here give its
Device-Cloud and EdgeMove rows; docs/edgemove.md says what was chosen.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.fleet.city import City, Day, generated_city, real_city
from weft.fleet.mobility import Walk
from weft.papers.noise import Measured, measured
from weft.papers.registry import Tell
from weft.planning.task import named_graph
from weft.plans.online import Policy
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.strategies.edgemove.model import SplitCosts, split_costs
from weft.strategies.edgemove.online.baselines import DeviceCloud, OnDevice, PipeDreamE
from weft.strategies.edgemove.online.clairvoyant import clairvoyant_s
from weft.strategies.edgemove.online.edgemove import EdgeMove
from weft.strategies.edgemove.online.journey import Journey, travel
from weft.strategies.edgemove.online.pipeline import VARIATION
from weft.strategies.edgemove.online.plus import EdgeMovePlus

BATCH = 32
STEPS = 10_000
SPEED, DOUBLED = 5.0, 10.0  # metres per second
CITY = 1  # the seed of the servers' cells, GPUs and distances
EVEN = 0.3  # this share of a network's time is equal for all layers; the rest is by operations
IMAGE = (3, 32, 32)


@dataclass(frozen=True)
class Workload:
    """A network on a data set. Texts and sounds have the shape of images: only the cycle differs."""

    id: str
    title: str
    model: str
    cycle: int  # iterations between two decisions
    client_s: float  # of an iteration on the client
    idle_s: float  # of an iteration on an idle 3080Ti


VGG = ("vgg16", 0.130, 0.0154)
RESNET = ("resnet50", 0.148, 0.030)
WORKLOADS = (
    Workload("vgg-cifar", "VGG-16, CIFAR-10", VGG[0], 500, *VGG[1:]),
    Workload("resnet-cinic", "ResNet-50, CINIC-10", RESNET[0], 500, *RESNET[1:]),
    Workload("vgg-agnews", "VGG-16, AG News", VGG[0], 1000, *VGG[1:]),
    Workload("resnet-speech", "ResNet-50, Speech Commands", RESNET[0], 200, *RESNET[1:]),
)

Make = Callable[[SplitCosts, Workload, int], Policy]
PAPER_POLICIES: Mapping[str, Make] = {
    "on-device": lambda costs, load, seed: OnDevice(costs),
    "device-cloud": lambda costs, load, seed: DeviceCloud(costs),
    "pipedream-e": lambda costs, load, seed: PipeDreamE(costs, load.cycle, seed),
    "edgemove": lambda costs, load, seed: EdgeMove(costs, load.cycle, seed),
}
OUR_POLICIES: Mapping[str, Make] = {
    "edgemove+ (2)": lambda costs, load, seed: _plus(costs, in_flight=2),
    "edgemove+": lambda costs, load, seed: _plus(costs),
    "edgemove+ 8 bit": lambda costs, load, seed: _plus(costs, codecs=("none", "int8")),
}
BOUND = "clairvoyant (2)"
PAID = "clairvoyant (2) that pays for its moves"
BY_CYCLE = ("pipedream-e", "edgemove")  # the others decide equally often on every data set


def _plus(costs: SplitCosts, **settings: Any) -> EdgeMovePlus:
    """edgemove+ that knows how its minibatches vary, and that no server is faster than the idle one."""
    return EdgeMovePlus(costs, spread=VARIATION, idle=1.0, tiers=("edge",), **settings)


@functools.cache  # capturing a network takes seconds, and it never changes
def units(model: str) -> tuple[LayerCost, ...]:
    """The layers between which one tensor is sent: 16 of VGG-16, 18 of ResNet-50."""
    graph = named_graph(model, IMAGE, 10)
    layers: list[LayerCost] = []
    params, flops = 0, 0.0
    for m, layer in enumerate(graph.layers, start=1):
        params, flops = params + graph.param_bytes(m - 1), flops + layer.forward_flops
        if len(graph.cut(m)) == 1:
            layers.append(LayerCost(layer.name, params, graph.cut_bytes(m), flops))
            params, flops = 0, 0.0
    return tuple(layers)


def workload_profile(load: Workload) -> Profile:
    """The times of client and idle worker: a third is the forward pass; backward includes the update."""
    layers = units(load.model)
    total = math.fsum(layer.forward_flops for layer in layers)
    shares = [EVEN / len(layers) + (1 - EVEN) * x.forward_flops / total for x in layers]

    def times(seconds: float) -> DeviceTimes:
        forward = tuple(share * seconds / BATCH / 3 for share in shares)
        return DeviceTimes(forward, tuple(2 * s for s in forward), (0.0,) * len(layers))

    devices = {"client": times(load.client_s), "worker": times(load.idle_s)}
    return Profile(load.model, 4 * math.prod(IMAGE), layers, devices)


@functools.cache
def workload_costs(load: Workload) -> SplitCosts:
    """The costs of a workload on client and worker, by cut."""
    return split_costs(workload_profile(load), "client", "worker", BATCH)


def the_city() -> City:
    """Melbourne's business district if its data is on this machine, else a generated city as dense."""
    from weft.data.eua import load_eua  # the data sets import torch, which takes time
    from weft.data.files import data_root

    if data_root(None) is None:
        return generated_city(CITY)
    return real_city(load_eua().servers, CITY)


@dataclass(frozen=True)
class Trip:
    """One trajectory under one policy, without its single minibatches."""

    seconds: float
    cut_moves: int
    worker_changes: int
    paused_s: float
    probes: int

    @staticmethod
    def of(journey: Journey) -> Trip:
        """The numbers of a journey; the first decision counts as no change."""
        later = [change for change in journey.changes if change.step > 0]
        workers = sum(change.new_worker for change in later)
        return Trip(
            journey.seconds, len(later) - workers, workers, journey.paused_s, journey.probes
        )


@dataclass
class Runs:
    """Trips by workload, policy and speed, and the progress of the first trajectory.

    Our own policies and the clairvoyants may have fewer trajectories than the paper's: the first ones.
    """

    city: City
    trajectories: int
    behind_s: dict[str, list[float]] = field(default_factory=dict)  # see `warm_up_s`, by workload
    trips: dict[tuple[str, str, float], list[Trip]] = field(default_factory=dict)
    # Seconds of the clairvoyants, by workload and by whether they pay for their moves.
    bounds: dict[tuple[str, bool], list[float]] = field(default_factory=dict)
    progress: dict[tuple[str, str], NDArray[np.float64]] = field(default_factory=dict)

    def mean(self, load: str, policy: str, what: str = "seconds", speed: float = SPEED) -> float:
        """The mean of a number over all trajectories."""
        return statistics.fmean(getattr(trip, what) for trip in self.trips[load, policy, speed])

    def speedup(self, load: str, policy: str, speed: float = SPEED) -> float:
        """The speed-up over On-Device, from mean times as in the paper."""
        if policy in (BOUND, PAID):
            mine = self.bound_s(load, policy == PAID)
        else:
            mine = self.mean(load, policy, speed=speed)
        return self.mean(load, "on-device") / mine

    def gain(self, load: str, faster: str, slower: str, speed: float = SPEED) -> Measured:
        """The share by which `slower` takes longer, on the same trajectories."""
        mine, other = self.trips[load, faster, speed], self.trips[load, slower, speed]
        pairs = list(zip(mine, other, strict=False))
        mean = statistics.fmean(a.seconds for a, _ in pairs)
        return measured([(b.seconds - a.seconds) / mean for a, b in pairs])

    def error(self, load: str, policy: str) -> float:
        """The standard error of a policy's mean time, as a share of it."""
        seconds = [trip.seconds for trip in self.trips[load, policy, SPEED]]
        return measured([s / statistics.fmean(seconds) for s in seconds]).error

    def bound_s(self, load: str, paid: bool = False) -> float:
        """Mean seconds of a clairvoyant."""
        return statistics.fmean(self.bounds[load, paid])

    def behind_bound(self, load: str, policy: str, paid: bool = False) -> float:
        """The share by which a policy takes longer than a clairvoyant."""
        trips = self.trips[load, policy, SPEED][: len(self.bounds[load, paid])]
        return statistics.fmean(trip.seconds for trip in trips) / self.bound_s(load, paid) - 1


def warm_up_s(mine: Sequence[float], other: Sequence[float]) -> float:
    """The last second at which `mine` had done fewer minibatches than `other`; both are lists of ends."""
    behind = np.flatnonzero(np.array(mine) > np.array(other))
    return float(other[behind[-1]]) if len(behind) else 0.0


def day_of(city: City, trajectory: int, speed: float) -> Day:
    """One walk through the city."""
    return Day(city, Walk(city.box, speed, trajectory), trajectory)


def run_city(city: City, trajectories: int, ours: int, tell: Tell, end: float = 1.0) -> Runs:
    """The paper's policies on every trajectory at both speeds; ours and the clairvoyants on the first
    trajectories, at the first speed."""
    runs = Runs(city, trajectories)
    for trajectory in range(trajectories):
        tell(f"trajectory {trajectory + 1} of {trajectories}", end * trajectory / trajectories)
        for speed in (SPEED, DOUBLED):
            run_walk(runs, trajectory, speed, ours=trajectory < ours)
    return runs


def run_walk(runs: Runs, trajectory: int, speed: float, ours: bool = True) -> None:
    """One trajectory under every policy. A journey that is equal on two data sets is made once."""
    day = day_of(runs.city, trajectory, speed)
    with_ours = ours and speed == SPEED
    policies = {**PAPER_POLICIES, **(OUR_POLICIES if with_ours else {})}
    known: dict[tuple[str, str], Journey] = {}
    for load in WORKLOADS:
        costs = workload_costs(load)
        for name, make in policies.items():
            key = (load.id if name in BY_CYCLE else load.model, name)
            if key not in known:
                policy = make(costs, load, trajectory)
                known[key] = travel(policy, costs, day, STEPS, trajectory)
            journey = known[key]
            runs.trips.setdefault((load.id, name, speed), []).append(Trip.of(journey))
            if trajectory == 0 and speed == SPEED:
                runs.progress[load.id, name] = np.array(journey.ends_s)
        if speed == SPEED:
            ends = [known[load.id, name].ends_s for name in ("edgemove", "pipedream-e")]
            runs.behind_s.setdefault(load.id, []).append(warm_up_s(*ends))
        for paid in (False, True) if with_ours else ():
            bound = clairvoyant_s(costs, day, 2, STEPS, paid)
            runs.bounds.setdefault((load.id, paid), []).append(bound)
